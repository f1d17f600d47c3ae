/* Sparse affine layers in one call.
 *
 * Sparse weights are stored twice. One example runs input by input, over the inputs that are not 0
 * (after a ReLU, or pixels outside a digit, most are): each adds its factor times a column of
 * weights to the outputs, a group of neighbouring outputs at a time where columns are dense enough,
 * otherwise one by one. Layers with few zeros run as plain dot products. Batches run output by
 * output in blocks of 64 or 16 examples, turned so that the examples of one feature are side by
 * side: each stored weight then meets whole vectors of examples, and the sums stay in registers.
 * Features are taken a tile at a time where that keeps the inputs in the first cache. Vector types
 * are GCC's (also Clang's), as wide as the machine's registers: wider ones would live in memory.
 */
#include <math.h>
#include <stdint.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4)));
#define WIDE 64
#define NARROW 16
#define FEW 4 /* examples below which one at a time beats a padded block */
#define EACH _Pragma("GCC unroll 16") for

const int64_t bayesieve_lanes = LANES;

typedef struct {
  int64_t n_in, n_out;
  int64_t activation; /* 0 none, 1 ReLU, 2 leaky ReLU, 3 tanh, 4 sigmoid, 5 SiLU, 6 GELU */
  double slope;       /* of the leaky ReLU */
  int64_t n_tiles, tile;  /* tiles of features, features in each but the last */
  const int32_t *start;   /* n_tiles * n_out + 1: the weights of each tile and output */
  const uint16_t *column; /* of each weight, counted from its tile's first feature */
  const float *value;
  const float *bias;      /* n_out */
  int64_t group;          /* outputs whose weights by input are side by side: LANES or 1 */
  const int32_t *first;   /* n_in + 1: the weights of each input, by groups; of 1: a multiple of 4 */
  const uint16_t *row;    /* number of each group */
  const float *weight;
  const float *dense;     /* (n_out, n_in) where most weights are there, else NULL */
} layer;

typedef struct {
  int64_t n_layers, n_features, n_used, n_outputs, width;
  const int32_t *quads; /* n_used / 4: the first of each four neighbours that are read */
  const layer *layers;
} network;

static inline float activate(float v, int64_t kind, float slope) {
  switch (kind) {
    case 1: return v < 0 ? 0 : v; /* NaN stays NaN, as in torch */
    case 2: return v < 0 ? slope * v : v;
    case 3: return tanhf(v);
    case 4: return 1 / (1 + expf(-v));
    case 5: return v / (1 + expf(-v));
    case 6: return 0.5f * v * (1 + erff(v * 0.70710678118654752f));
    default: return v;
  }
}

static inline vec positive(vec v) { return (vec)((__typeof__(v < 0))v & ~(v < 0)); }

static void one_dense(const layer *self, const float *x, float *y) {
  const int64_t n = self->n_in;
  for (int64_t row = 0; row < self->n_out; row++) {
    const float *from = self->dense + row * n;
    vec sums[4] = {{0}};
    int64_t k = 0;
    for (; k + 4 * LANES <= n; k += 4 * LANES)
      EACH(int j = 0; j < 4; j++)
        sums[j] += *(const loose *)(from + k + j * LANES) * *(const loose *)(x + k + j * LANES);
    const vec all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float sum = self->bias[row];
    for (int j = 0; j < LANES; j++) sum += all[j];
    for (; k < n; k++) sum += from[k] * x[k];
    y[row] = activate(sum, self->activation, (float)self->slope);
  }
}

/* y has room for LANES numbers more than n_out */
static void one(const layer *self, const float *x, float *y, int32_t *list) {
  if (self->dense) {
    one_dense(self, x, y);
    return;
  }
  int64_t n = 0;
  for (int64_t column = 0; column < self->n_in; column++) {
    list[n] = (int32_t)column; /* overwritten unless it counts: no branch to guess wrong */
    n += x[column] != 0;
  }
  const uint16_t *rows = self->row;
  const float *weight = self->weight;
  for (int64_t row = 0; row < self->n_out; row++) y[row] = self->bias[row];
  for (int64_t i = 0; i < n; i++) {
    const int32_t column = list[i], end = self->first[column + 1];
    const float input = x[column];
    if (self->group == 1) { /* the outputs of an input are different ones */
      for (int32_t k = self->first[column]; k < end; k += 4) {
        float sums[4];
        EACH(int j = 0; j < 4; j++) sums[j] = y[rows[k + j]] + weight[k + j] * input;
        EACH(int j = 0; j < 4; j++) y[rows[k + j]] = sums[j];
      }
    } else {
      for (int32_t k = self->first[column]; k < end; k++)
        *(loose *)(y + LANES * rows[k]) += *(const loose *)(weight + LANES * (int64_t)k) * input;
    }
  }
  if (self->activation == 1) {
    for (int64_t row = 0; row < self->n_out; row++) y[row] = y[row] < 0 ? 0 : y[row];
  } else if (self->activation) {
    for (int64_t row = 0; row < self->n_out; row++)
      y[row] = activate(y[row], self->activation, (float)self->slope);
  }
}

typedef float four __attribute__((vector_size(16), aligned(4)));
typedef int32_t places __attribute__((vector_size(16)));
#if defined(__clang__)
#define MIX(A, B, ...) __builtin_shufflevector(A, B, __VA_ARGS__)
#else
#define MIX(A, B, ...) __builtin_shuffle(A, B, (places){__VA_ARGS__})
#endif

/* four numbers from each of four places, turned */
static inline void turn(const float *a, const float *b, const float *c, const float *d, float *to,
                        int64_t apart) {
  const four p = *(const four *)a, q = *(const four *)b, r = *(const four *)c, s = *(const four *)d;
  const four low = MIX(p, q, 0, 4, 1, 5), high = MIX(p, q, 2, 6, 3, 7);
  const four low2 = MIX(r, s, 0, 4, 1, 5), high2 = MIX(r, s, 2, 6, 3, 7);
  *(four *)to = MIX(low, low2, 0, 1, 4, 5);
  *(four *)(to + apart) = MIX(low, low2, 2, 3, 6, 7);
  *(four *)(to + 2 * apart) = MIX(high, high2, 0, 1, 4, 5);
  *(four *)(to + 3 * apart) = MIX(high, high2, 2, 3, 6, 7);
}

/* up to 16 features of x, (n, n_features), from a quad on, to (16, size): a cache line of each
 * example; examples beyond the last repeat it */
static inline void turn_some(const network *net, int64_t n, int64_t size, const float *x,
                             int64_t first, float *to) {
  const int64_t apart = net->n_features, left = net->n_used / 4 - first, end = left < 4 ? left : 4;
  for (int64_t f = 0; f < apart && apart < 4; f++)
    for (int64_t j = 0; j < size; j++) to[f * size + j] = x[(j < n ? j : n - 1) * apart + f];
  for (int64_t j = 0; j < size; j += 4) {
    const float *row[4];
    for (int i = 0; i < 4; i++) row[i] = x + (j + i < n ? j + i : n - 1) * apart;
    for (int64_t q = 0; q < end; q++) {
      const int64_t f = net->quads[first + q];
      turn(row[0] + f, row[1] + f, row[2] + f, row[3] + f, to + 4 * q * size + j, size);
    }
  }
}

/* y, (n_out, size), to out, (n, n_out) */
static inline void turn_out(int64_t n_out, int64_t n, int64_t size, const float *y, float *out) {
  for (int64_t row = 0; row < n_out; row += 4)
    for (int64_t j = 0; j < n; j += 4) {
      const float *from = y + row * size + j;
      float *to = out + j * n_out + row;
      if (row + 4 <= n_out && j + 4 <= n)
        turn(from, from + size, from + 2 * size, from + 3 * size, to, n_out);
      else
        for (int64_t r = 0; r < 4 && row + r < n_out; r++)
          for (int64_t i = 0; i < 4 && j + i < n; i++) to[i * n_out + r] = from[r * size + i];
    }
}

/* x is (features, SIZE), y is (n_out, SIZE), both aligned to 64 bytes */
#define BLOCK(NAME, SIZE)                                                                  \
  static void NAME(const layer *self, const float *x, float *y) {                          \
    const int32_t *start = self->start;                                                    \
    const int64_t kind = self->activation;                                                 \
    for (int64_t tile = 0; tile < self->n_tiles; tile++, x += self->tile * SIZE) {         \
      const int last = tile + 1 == self->n_tiles;                                          \
      for (int64_t row = 0; row < self->n_out; row++, start++) {                           \
        vec sum[SIZE / LANES], *to = (vec *)(y + row * SIZE);                              \
        EACH(int j = 0; j < SIZE / LANES; j++)                                             \
          sum[j] = tile ? to[j] : (vec){0} + self->bias[row];                              \
        for (int32_t k = start[0]; k < start[1]; k++) {                                    \
          const vec *from = (const vec *)(x + (int64_t)self->column[k] * SIZE);            \
          const float weight = self->value[k];                                             \
          EACH(int j = 0; j < SIZE / LANES; j++) sum[j] += weight * from[j];               \
        }                                                                                  \
        if (last && kind == 1) EACH(int j = 0; j < SIZE / LANES; j++) sum[j] = positive(sum[j]); \
        EACH(int j = 0; j < SIZE / LANES; j++) to[j] = sum[j];                             \
        if (last && kind > 1)                                                              \
          for (int j = 0; j < SIZE; j++)                                                   \
            ((float *)to)[j] = activate(((float *)to)[j], kind, (float)self->slope);       \
      }                                                                                    \
    }                                                                                      \
  }                                                                                        \
  static void NAME##_all(const network *net, int64_t n, const float *x, float *out,        \
                         float *scratch) {                                                 \
    float *here = scratch, *there = scratch + net->width * SIZE;                           \
    for (int64_t f = 0; f < net->n_used; f += 16)                                          \
      turn_some(net, n, SIZE, x, f / 4, here + f * SIZE);                                  \
    for (int64_t i = 0; i < net->n_layers; i++) {                                          \
      NAME(net->layers + i, here, there);                                                  \
      float *swap = here; here = there; there = swap;                                      \
    }                                                                                      \
    turn_out(net->n_outputs, n, SIZE, here, out);                                          \
  }

BLOCK(wide, WIDE)
BLOCK(narrow, NARROW)

static void one_all(const network *net, const float *x, float *out, float *scratch) {
  const int64_t room = (net->width / LANES + 2) * LANES; /* keeps vectors inside cache lines */
  float *here = scratch, *there = scratch + room;
  int32_t *list = (int32_t *)(scratch + 2 * room);
  const float *from = x;
  if (net->n_used != net->n_features) {
    for (int64_t q = 0; q < net->n_used / 4; q++)
      *(four *)(here + 4 * q) = *(const four *)(x + net->quads[q]);
    from = here;
  }
  for (int64_t i = 0; i < net->n_layers; i++) {
    float *to = from == there ? here : there;
    one(net->layers + i, from, to, list);
    from = to;
  }
  for (int64_t row = 0; row < net->n_outputs; row++) out[row] = from[row];
}

/* x is (n, n_features), out (n, n_outputs), scratch 2 * width * 64 floats, 64-byte aligned */
void bayesieve_run(const network *net, int64_t n, const float *x, float *out, float *scratch) {
  while (n > 0) {
    int64_t done = n >= WIDE ? WIDE : n >= NARROW ? NARROW : n > FEW ? n : 1;
    if (done == WIDE) wide_all(net, done, x, out, scratch);
    else if (done > 1) narrow_all(net, done, x, out, scratch);
    else one_all(net, x, out, scratch);
    n -= done, x += done * net->n_features, out += done * net->n_outputs;
  }
}
