/* Sparse affine layers in one call.
 *
 * Sparse weights are stored twice, by output and by input. One example runs as sparse dot products,
 * or, where more than half of a layer's inputs are 0 (after a ReLU, margins of an image), as sums
 * over the inputs that are not; layers with few zeros run as plain dot products. Batches run in
 * blocks of 64 or 16 examples, turned so that the examples of one feature are side by side: each
 * stored weight then meets a whole vector of examples. Vector types are GCC's (also Clang's); the
 * compiler lowers them to what the machine has.
 */
#include <math.h>
#include <stdint.h>

typedef float vec __attribute__((vector_size(64)));
typedef float loose __attribute__((vector_size(64), aligned(4)));
#define LANES 16
#define WIDE 64
#define FEW 4 /* examples below which one at a time beats a padded block */

typedef struct {
  int64_t n_in, n_out;
  int64_t activation; /* 0 none, 1 ReLU, 2 leaky ReLU, 3 tanh, 4 sigmoid, 5 SiLU, 6 GELU */
  double slope;       /* of the leaky ReLU */
  const int32_t *start;  /* n_out + 1 */
  const int32_t *column; /* start[n_out] */
  const float *value;    /* start[n_out] */
  const float *bias;     /* n_out */
  const int32_t *from;   /* n_in + 1: the same weights by input */
  const int32_t *row;
  const float *weight;
  const float *dense;    /* (n_out, n_in) where most weights are there, else NULL */
} layer;

typedef struct {
  int64_t n_layers, n_features, n_used, n_outputs, width;
  const int32_t *used; /* n_used features that some weight reads, or NULL for all in order */
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

static void one_by_input(const layer *self, const float *x, float *y, const int32_t *list,
                         int64_t n) {
  for (int64_t row = 0; row < self->n_out; row++) y[row] = self->bias[row];
  for (int64_t i = 0; i < n; i++) {
    const int32_t column = list[i], end = self->from[column + 1];
    const float input = x[column];
    for (int32_t k = self->from[column]; k < end; k++) y[self->row[k]] += self->weight[k] * input;
  }
  if (self->activation == 1) {
    for (int64_t row = 0; row < self->n_out; row++) y[row] = y[row] < 0 ? 0 : y[row];
  } else if (self->activation) {
    for (int64_t row = 0; row < self->n_out; row++)
      y[row] = activate(y[row], self->activation, (float)self->slope);
  }
}

static void one_dense(const layer *self, const float *x, float *y) {
  const int64_t n = self->n_in;
  for (int64_t row = 0; row < self->n_out; row++) {
    const float *from = self->dense + row * n;
    vec a = {0}, b = {0};
    int64_t k = 0;
    for (; k + 2 * LANES <= n; k += 2 * LANES) {
      a += *(const loose *)(from + k) * *(const loose *)(x + k);
      b += *(const loose *)(from + k + LANES) * *(const loose *)(x + k + LANES);
    }
    a += b;
    float sum = self->bias[row];
    for (int j = 0; j < LANES; j++) sum += a[j];
    for (; k < n; k++) sum += from[k] * x[k];
    y[row] = activate(sum, self->activation, (float)self->slope);
  }
}

/* list has room for n_in numbers */
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
  if (20 * n <= 9 * self->n_in) {
    one_by_input(self, x, y, list, n);
    return;
  }
  const int32_t *start = self->start, *column = self->column;
  const float *value = self->value, *bias = self->bias;
  const int64_t kind = self->activation;
  for (int64_t row = 0; row < self->n_out; row++) {
    int32_t k = start[row], end = start[row + 1];
    float a = bias[row], b = 0, c = 0, d = 0;
    for (; k + 4 <= end; k += 4) {
      a += value[k] * x[column[k]];
      b += value[k + 1] * x[column[k + 1]];
      c += value[k + 2] * x[column[k + 2]];
      d += value[k + 3] * x[column[k + 3]];
    }
    for (; k < end; k++) a += value[k] * x[column[k]];
    a = (a + b) + (c + d);
    y[row] = kind == 1 ? (a < 0 ? 0 : a) : activate(a, kind, (float)self->slope);
  }
}

/* x is (features, SIZE), y is (n_out, SIZE), both aligned to 64 bytes */
#define BLOCK(NAME, SIZE)                                                                  \
  static void NAME(const layer *self, const float *x, float *y) {                          \
    const int32_t *start = self->start, *column = self->column;                            \
    const float *value = self->value;                                                      \
    const int64_t kind = self->activation;                                                 \
    for (int64_t row = 0; row < self->n_out; row++) {                                      \
      vec sum[SIZE / LANES];                                                               \
      for (int j = 0; j < SIZE / LANES; j++) sum[j] = (vec){0} + self->bias[row];          \
      for (int32_t k = start[row]; k < start[row + 1]; k++) {                              \
        const vec *from = (const vec *)(x + (int64_t)column[k] * SIZE);                    \
        const float weight = value[k];                                                     \
        for (int j = 0; j < SIZE / LANES; j++) sum[j] += weight * from[j];                 \
      }                                                                                    \
      float *to = y + row * SIZE;                                                          \
      for (int j = 0; j < SIZE / LANES; j++) *(vec *)(to + j * LANES) = sum[j];            \
      if (kind == 1) {                                                                     \
        for (int j = 0; j < SIZE; j++) to[j] = to[j] < 0 ? 0 : to[j];                      \
      } else if (kind) {                                                                   \
        for (int j = 0; j < SIZE; j++) to[j] = activate(to[j], kind, (float)self->slope);  \
      }                                                                                    \
    }                                                                                      \
  }                                                                                        \
  static void NAME##_all(const network *net, int64_t n, const float *x, float *out,        \
                         float *scratch) {                                                 \
    float *here = scratch, *there = scratch + net->width * SIZE;                           \
    for (int64_t f = 0; f < net->n_used; f++) {                                            \
      const float *from = x + (net->used ? net->used[f] : f);                              \
      float *to = here + f * SIZE;                                                         \
      for (int64_t j = 0; j < n; j++) to[j] = from[j * net->n_features];                   \
      for (int64_t j = n; j < SIZE; j++) to[j] = 0;                                        \
    }                                                                                      \
    for (int64_t i = 0; i < net->n_layers; i++) {                                          \
      NAME(net->layers + i, here, there);                                                  \
      float *swap = here; here = there; there = swap;                                      \
    }                                                                                      \
    for (int64_t j = 0; j < n; j++)                                                        \
      for (int64_t row = 0; row < net->n_outputs; row++)                                   \
        out[j * net->n_outputs + row] = here[row * SIZE + j];                              \
  }

BLOCK(wide, WIDE)
BLOCK(narrow, LANES)

static void one_all(const network *net, const float *x, float *out, float *scratch) {
  float *here = scratch, *there = scratch + net->width;
  int32_t *list = (int32_t *)(scratch + 2 * net->width);
  const float *from = x;
  if (net->used) {
    for (int64_t f = 0; f < net->n_used; f++) here[f] = x[net->used[f]];
    from = here;
  }
  for (int64_t i = 0; i < net->n_layers; i++) {
    float *to = i + 1 == net->n_layers ? out : (from == there ? here : there);
    one(net->layers + i, from, to, list);
    from = to;
  }
}

/* x is (n, n_features), out (n, n_outputs), scratch 2 * width * 64 floats, 64-byte aligned */
void bayesieve_run(const network *net, int64_t n, const float *x, float *out, float *scratch) {
  while (n > 0) {
    int64_t done = n >= WIDE ? WIDE : n >= LANES ? LANES : n > FEW ? n : 1;
    if (done == WIDE) wide_all(net, done, x, out, scratch);
    else if (done > 1) narrow_all(net, done, x, out, scratch);
    else one_all(net, x, out, scratch);
    n -= done, x += done * net->n_features, out += done * net->n_outputs;
  }
}
