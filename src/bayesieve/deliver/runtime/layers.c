/* Sparse affine layers in one call.
 *
 * Sparse weights are stored twice. One example runs input by input, over the inputs that are not 0
 * (after a ReLU, or pixels outside a digit, most are): each adds its factor times a column of
 * weights to the outputs, a group of neighbouring outputs at a time where columns are dense enough,
 * otherwise one by one. Layers with few zeros run as plain dot products. Batches run in blocks of
 * examples, turned so that the examples of one feature are side by side: each stored weight then
 * meets whole vectors of examples. Many registers of sums are filled at the same time, since an
 * addition takes as long as eight can begin: two outputs of four registers of examples, or, where
 * there are 32 registers of 64 bytes, eight outputs of two, whose inputs take half the room in the
 * first cache. Outputs come in the order of the number of their weights, so that the processor knows
 * where sums end, and one load brings four weights: loads are what this loop waits for. Features are
 * taken a tile at a time where that keeps the inputs in the first cache. Vector types are GCC's (also
 * Clang's), as wide as the machine's registers: wider ones would live in memory.
 */
#include <math.h>
#include <stdint.h>
#if defined(__SSSE3__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4)));
#if defined(__AVX512F__) /* of 32 registers: more outputs, so that fewer examples stay in a cache */
#define AT_ONCE 8
#define WIDE (2 * LANES) /* examples of a block */
#else
#define AT_ONCE 2
#define WIDE (4 * LANES)
#endif
#define NARROW (WIDE / 2)
#define FEW 4 /* examples below which one at a time beats a padded block */
#define EACH _Pragma("GCC unroll 16") for
#define INLINE static inline __attribute__((always_inline))

const int64_t bayesieve_lanes = LANES, bayesieve_wide = WIDE, bayesieve_at_once = AT_ONCE;

typedef struct { /* bundles of outputs of a tile that have as many weights: see kernels.py */
  int32_t feature;   /* first of the tile */
  int32_t begins;    /* whether sums begin here: with the bias */
  int32_t ends;      /* whether sums end here: in the activation */
  int32_t outputs;   /* of a bundle: 2 or AT_ONCE */
  int32_t steps;     /* of four weights; an even number for 8 outputs */
  int32_t n_bundles;
} run;

typedef struct {
  int64_t n_in, n_out;
  int64_t activation; /* 0 none, 1 ReLU, 2 leaky ReLU, 3 tanh, 4 sigmoid, 5 SiLU, 6 GELU */
  double slope;       /* of the leaky ReLU */
  int64_t n_runs;
  const run *runs;
  const int32_t *output;  /* of each pair two; n_out stands for none */
  const uint16_t *column; /* of each weight, counted from its tile's first feature */
  const float *value;
  const float *bias;      /* n_out + 1 */
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

#if defined(__AVX512F__)
/* the next 16 places, those of a mask at the end of a list that has n numbers and room for 16 more */
INLINE int64_t append(int32_t *list, int64_t n, int64_t first, __mmask16 mask) {
  const __m512i order = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i places = _mm512_add_epi32(order, _mm512_set1_epi32((int32_t)first));
  _mm512_storeu_si512(list + n, _mm512_maskz_compress_epi32(mask, places));
  return n + __builtin_popcount(mask);
}
#define LEADING(N) (__mmask16)((N) < 16 ? (1 << (N)) - 1 : 0xffff)
#endif

/* the places of x that are not 0, NaN being none */
static int64_t listed(const float *x, int64_t n_in, int32_t *list) {
  int64_t n = 0;
#if defined(__AVX512F__)
  for (int64_t i = 0; i < n_in; i += 16) {
    const __m512 some = _mm512_maskz_loadu_ps(LEADING(n_in - i), x + i);
    n = append(list, n, i, _mm512_cmp_ps_mask(some, _mm512_setzero_ps(), _CMP_NEQ_UQ));
  }
#else
  for (int64_t i = 0; i < n_in; i++) {
    list[n] = (int32_t)i; /* overwritten unless it counts: no branch to guess wrong */
    n += x[i] != 0;
  }
#endif
  return n;
}

/* y has room for LANES numbers more than n_out */
static void one(const layer *self, const float *x, float *y, int32_t *list) {
  if (self->dense) {
    one_dense(self, x, y);
    return;
  }
  const int64_t n = listed(x, self->n_in, list);
  list[n] = 0; /* what comes after the last is asked for below, and not used */
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
      const float *next = weight + LANES * (int64_t)(self->first[list[i + 1]] - self->first[column]);
      for (int32_t k = self->first[column]; k < end; k++) {
        __builtin_prefetch(next + LANES * (int64_t)k);
        *(loose *)(y + LANES * rows[k]) += *(const loose *)(weight + LANES * (int64_t)k) * input;
      }
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

/* four features of a register of examples, turned: those of every fourth example side by side */
INLINE void turn_quad(const float *const *row, int64_t f, float *to, int64_t size) {
#if defined(__AVX512F__)
#define PART(M, I, V) _mm512_mask_broadcast_f32x4(V, 0xf << 4 * I, _mm_loadu_ps(row[4 * I + M] + f))
#define PARTS(M) \
  PART(M, 3, PART(M, 2, PART(M, 1, _mm512_castps128_ps512(_mm_loadu_ps(row[M] + f)))))
  const __m512 p = PARTS(0), q = PARTS(1);
  const __m512 r = PARTS(2), s = PARTS(3);
  const __m512d low = (__m512d)_mm512_unpacklo_ps(p, q), high = (__m512d)_mm512_unpackhi_ps(p, q);
  const __m512d low2 = (__m512d)_mm512_unpacklo_ps(r, s), high2 = (__m512d)_mm512_unpackhi_ps(r, s);
  _mm512_store_pd(to, _mm512_unpacklo_pd(low, low2));
  _mm512_store_pd(to + size, _mm512_unpackhi_pd(low, low2));
  _mm512_store_pd(to + 2 * size, _mm512_unpacklo_pd(high, high2));
  _mm512_store_pd(to + 3 * size, _mm512_unpackhi_pd(high, high2));
#elif defined(__AVX__)
#define PARTS(M) \
  _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(row[M] + f)), _mm_loadu_ps(row[M + 4] + f), 1)
  const __m256 p = PARTS(0), q = PARTS(1), r = PARTS(2), s = PARTS(3);
  const __m256d low = (__m256d)_mm256_unpacklo_ps(p, q), high = (__m256d)_mm256_unpackhi_ps(p, q);
  const __m256d low2 = (__m256d)_mm256_unpacklo_ps(r, s), high2 = (__m256d)_mm256_unpackhi_ps(r, s);
  _mm256_store_pd((double *)to, _mm256_unpacklo_pd(low, low2));
  _mm256_store_pd((double *)(to + size), _mm256_unpackhi_pd(low, low2));
  _mm256_store_pd((double *)(to + 2 * size), _mm256_unpacklo_pd(high, high2));
  _mm256_store_pd((double *)(to + 3 * size), _mm256_unpackhi_pd(high, high2));
#else
  turn(row[0] + f, row[1] + f, row[2] + f, row[3] + f, to, size);
#endif
}

/* up to 16 features of x, (n, n_features), from a quad on, to (16, size): a cache line of each
 * example; examples beyond the last repeat it */
static inline void turn_some(const network *net, int64_t n, int64_t size, const float *x,
                             int64_t first, float *to) {
  const int64_t apart = net->n_features, left = net->n_used / 4 - first, end = left < 4 ? left : 4;
  for (int64_t f = 0; f < apart && apart < 4; f++)
    for (int64_t j = 0; j < size; j++) to[f * size + j] = x[(j < n ? j : n - 1) * apart + f];
  for (int64_t j = 0; j < size; j += LANES) {
    const float *row[LANES];
    for (int i = 0; i < LANES; i++) row[i] = x + (j + i < n ? j + i : n - 1) * apart;
    for (int64_t q = 0; q < end; q++)
      turn_quad(row, net->quads[first + q], to + 4 * q * size + j, size);
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

/* Four weights in every 128 bits of a register, one of them in all places, and what it does */
#if defined(__AVX512F__)
#define REAL_FOUR(FROM) (vec)_mm512_broadcast_f32x4(_mm_loadu_ps(FROM))
#define REAL_NTH(V, I) (vec)_mm512_permute_ps((__m512)(V), 0x55 * (I))
#elif defined(__AVX__)
#define REAL_FOUR(FROM) (vec)_mm256_broadcast_ps((const __m128 *)(FROM))
#define REAL_NTH(V, I) (vec)_mm256_permute_ps((__m256)(V), 0x55 * (I))
#else
#define REAL_FOUR(FROM) *(const four *)(FROM)
#define REAL_NTH(V, I) (vec)MIX(V, V, I, I, I, I)
#endif
#define REAL_TIMES(A, B) ((A) * (B))
typedef vec REAL; /* KIND of the next two, the other one is in integers.c */
#define ADD(KIND, SUM, WEIGHT, COLUMN, SIZE)                                             \
  {                                                                                      \
    const KIND weight = WEIGHT, *from = (const KIND *)(x + (int64_t)(COLUMN) * (SIZE));  \
    EACH(int j = 0; j < (int)(sizeof SUM / sizeof weight); j++)                          \
      SUM[j] += KIND##_TIMES(weight, from[j]);                                           \
  }

/* four weights of the outputs from FIRST on, over again after the last */
#define STEP(KIND, FIRST, SIZE, OUTS)                                                        \
  {                                                                                          \
    const KIND weights = KIND##_FOUR(value);                                                 \
    uint64_t four_columns;                                                                   \
    __builtin_memcpy(&four_columns, column, sizeof four_columns);                            \
    ADD(KIND, sum[(FIRST) % OUTS], KIND##_NTH(weights, 0), four_columns & 0xffff, SIZE)      \
    ADD(KIND, sum[(FIRST + 1) % OUTS], KIND##_NTH(weights, 1), four_columns >> 16 & 0xffff, SIZE) \
    ADD(KIND, sum[(FIRST + 2) % OUTS], KIND##_NTH(weights, 2), four_columns >> 32 & 0xffff, SIZE) \
    ADD(KIND, sum[(FIRST + 3) % OUTS], KIND##_NTH(weights, 3), four_columns >> 48, SIZE)     \
    column += 4, value += 4;                                                                 \
  }
/* all of the weights of a bundle */
#define STEPS(KIND, SIZE, OUTS)                                                              \
  for (int32_t k = 0; k < now->steps; k += OUTS == 8 ? 2 : 1) {                              \
    STEP(KIND, 0, SIZE, OUTS)                                                                \
    if (OUTS == 8) STEP(KIND, 4, SIZE, OUTS)                                                 \
  }

/* Sums of some outputs at the same time, OUTS: their weights take turns.
 * x is (features from the tile's first on, SIZE), y (n_out + 1, SIZE), both aligned to 64 bytes. */
#define RUN(NAME, SIZE, OUTS)                                                                \
  INLINE void NAME(const layer *self, const run *now, int begins, int ends,                  \
                   const int32_t *output, const uint16_t *column, const float *value,        \
                   const float *x, float *y) {                                               \
    const int64_t kind = self->activation;                                                   \
    for (int32_t bundle = 0; bundle < now->n_bundles; bundle++, output += OUTS) {            \
      vec sum[OUTS][SIZE / LANES];                                                           \
      EACH(int i = 0; i < OUTS; i++) {                                                       \
        const vec *from = (const vec *)(y + (int64_t)output[i] * SIZE);                      \
        const vec bias = (vec){0} + self->bias[output[i]];                                   \
        EACH(int j = 0; j < SIZE / LANES; j++) sum[i][j] = begins ? bias : from[j];          \
      }                                                                                      \
      STEPS(REAL, SIZE, OUTS)                                                                \
      EACH(int i = 0; i < OUTS; i++) {                                                       \
        float *to = y + (int64_t)output[i] * SIZE;                                           \
        EACH(int j = 0; j < SIZE / LANES; j++)                                               \
          ((vec *)to)[j] = ends && kind == 1 ? positive(sum[i][j]) : sum[i][j];              \
        for (int j = 0; ends && kind > 1 && j < SIZE; j++)                                   \
          to[j] = activate(to[j], kind, (float)self->slope);                                 \
      }                                                                                      \
    }                                                                                        \
  }

#define BLOCK(NAME, SIZE)                                                                    \
  RUN(NAME##_two, SIZE, 2)                                                                   \
  RUN(NAME##_more, SIZE, AT_ONCE)                                                            \
  static void NAME(const layer *self, const float *x, float *y) {                            \
    const int32_t *output = self->output;                                                    \
    const uint16_t *column = self->column;                                                   \
    const float *value = self->value;                                                        \
    for (const run *now = self->runs, *end = now + self->n_runs; now < end; now++) {         \
      const float *from = x + (int64_t)now->feature * SIZE;                                  \
      const int begins = now->begins, ends = now->ends, two = AT_ONCE == 2 || now->outputs == 2; \
      if (two && begins && ends)                                                             \
        NAME##_two(self, now, 1, 1, output, column, value, from, y);                         \
      else if (two) NAME##_two(self, now, begins, ends, output, column, value, from, y);     \
      else if (begins && ends)                                                               \
        NAME##_more(self, now, 1, 1, output, column, value, from, y);                        \
      else NAME##_more(self, now, begins, ends, output, column, value, from, y);             \
      const int64_t n = 4 * (int64_t)now->steps * now->n_bundles;                            \
      output += now->outputs * (int64_t)now->n_bundles, column += n, value += n;             \
    }                                                                                        \
  }                                                                                          \
  static void NAME##_all(const network *net, int64_t n, const float *x, float *out,          \
                         float *scratch) {                                                   \
    float *here = scratch, *there = scratch + net->width * SIZE;                             \
    for (int64_t f = 0; f < net->n_used; f += 16)                                            \
      turn_some(net, n, SIZE, x, f / 4, here + f * SIZE);                                    \
    for (int64_t i = 0; i < net->n_layers; i++) {                                            \
      NAME(net->layers + i, here, there);                                                    \
      float *swap = here; here = there; there = swap;                                        \
    }                                                                                        \
    turn_out(net->n_outputs, n, SIZE, here, out);                                            \
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
    const int64_t done = n >= WIDE ? WIDE : n > FEW ? n : 1;
    if (done > NARROW) wide_all(net, done, x, out, scratch);
    else if (done > 1) narrow_all(net, done, x, out, scratch);
    else one_all(net, x, out, scratch);
    n -= done, x += done * net->n_features, out += done * net->n_outputs;
  }
}
