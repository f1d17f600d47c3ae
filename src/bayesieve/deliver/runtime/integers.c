/* Sparse affine layers with 8-bit weights and 16-bit inputs and sums, in one call.
 *
 * Inputs are integers A, counted in steps. Each stored weight q adds round(A q / 128) to a sum of 16
 * bits. Inputs are cut at a limit that no sum can leave 16 bits with, so that neither the order of
 * the weights nor the path changes a result. A register holds twice as many 16-bit numbers as
 * floats. Batches run output by output, those with equally many weights one after another, so that the
 * processor knows where each sum ends. One example runs over its inputs that are not 0: layers with
 * few zeros by whole columns of weights, others weight by weight.
 */
#if defined(__AVX512BW__)
#define SHORTS 32
#elif defined(__AVX2__)
#define SHORTS 16
#else
#define SHORTS 8
#endif
#define INT_WIDE 64 /* examples of a block */
typedef int16_t ints __attribute__((vector_size(2 * SHORTS)));
typedef int8_t chars __attribute__((vector_size(2 * SHORTS)));
typedef int8_t loose_chars __attribute__((vector_size(SHORTS), aligned(1)));

const int64_t bayesieve_shorts = SHORTS;

typedef struct {
  int64_t n_in, n_out, activation; /* as in layers.c; between layers only none or ReLU */
  double slope;
  int64_t limit;          /* largest input, in steps */
  double inverse;         /* of a step of the inputs */
  const int32_t *output;  /* n_out: in the order that batches take them */
  const int32_t *start;   /* n_out + 1: their weights */
  const uint16_t *column; /* of each weight */
  const int8_t *value;
  const int8_t *columns;  /* all weights, SHORTS outputs at a time, or NULL: see int_columns */
  const int32_t *first;   /* n_in + 1: the weights of each input, else */
  const uint16_t *row;    /* of each weight */
  const int8_t *weight;
  const int16_t *factor;  /* n_out: sums to steps of the next layer's inputs, times 2^15 */
  const int16_t *offset;  /* n_out: the bias in those steps */
  const float *scale;     /* n_out: sums to outputs */
  const float *bias;      /* n_out */
} int_layer;

/* a b / 2^15, rounded */
static inline ints product(ints a, ints b) {
#if defined(__AVX512BW__)
  return (ints)_mm512_mulhrs_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (ints)_mm256_mulhrs_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSSE3__)
  return (ints)_mm_mulhrs_epi16((__m128i)a, (__m128i)b);
#elif defined(__ARM_NEON)
  return (ints)vqrdmulhq_s16((int16x8_t)a, (int16x8_t)b);
#else
  ints made;
  for (int j = 0; j < SHORTS; j++) made[j] = (int16_t)(((int32_t)a[j] * b[j] + (1 << 14)) >> 15);
  return made;
#endif
}

/* 256 times SHORTS weights */
static inline ints widened(const int8_t *from) {
#if defined(__AVX512BW__)
  const ints wide = (ints)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)from));
#elif defined(__AVX2__)
  const ints wide = (ints)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)from));
#else
  const ints wide = __builtin_convertvector(*(const loose_chars *)from, ints);
#endif
  return wide << 8;
}

static inline ints within(ints v, int16_t low, int16_t high) {
  const ints above = v > high;
  v = (v & ~above) | (above & high);
  const ints below = v < low;
  return (v & ~below) | (below & low);
}

static inline int16_t counted(float x, float inverse, float limit) {
  const float steps = x * inverse, most = steps < limit ? steps : limit;
  return (int16_t)rintf(most > -limit ? most : -limit);
}

/* sums of a layer to the inputs of the next, SHORTS at a time */
static inline ints passed_on(const int_layer *self, ints sum, ints factor, ints offset) {
  const int16_t limit = (int16_t)self[1].limit;
  return within(product(sum, factor) + offset, self->activation ? 0 : -limit, limit);
}

/* 256 times a weight, in all places */
#define SPREAD(Q) ((ints)((chars){0} + (Q)) & ((ints){0} + (int16_t)0xFF00))

/* x is (n_in, SIZE), aligned to 64 bytes; the last layer makes out, others y, both (n_out, SIZE) */
#define INT_BLOCK(NAME, SIZE)                                                                  \
  static void NAME(const int_layer *self, const int16_t *x, int16_t *y, float *out) {          \
    for (int64_t i = 0; i < self->n_out; i++) {                                                \
      const int64_t row = self->output[i];                                                     \
      ints sum[SIZE / SHORTS];                                                                 \
      EACH(int j = 0; j < SIZE / SHORTS; j++) sum[j] = (ints){0};                              \
      int32_t k = self->start[i];                                                              \
      for (const int32_t last = self->start[i + 1] - 1; k < last; k += 2) {                    \
        const ints *from = (const ints *)(x + (int64_t)self->column[k] * SIZE);                \
        const ints *from2 = (const ints *)(x + (int64_t)self->column[k + 1] * SIZE);           \
        const ints weight = SPREAD(self->value[k]), weight2 = SPREAD(self->value[k + 1]);      \
        EACH(int j = 0; j < SIZE / SHORTS; j++)                                                \
          sum[j] += product(weight, from[j]) + product(weight2, from2[j]);                     \
      }                                                                                        \
      if (k < self->start[i + 1]) {                                                            \
        const ints *from = (const ints *)(x + (int64_t)self->column[k] * SIZE);                \
        const ints weight = SPREAD(self->value[k]);                                            \
        EACH(int j = 0; j < SIZE / SHORTS; j++) sum[j] += product(weight, from[j]);            \
      }                                                                                        \
      if (out) {                                                                               \
        const float scale = self->scale[row], bias = self->bias[row];                          \
        float *to = out + row * SIZE;                                                          \
        int16_t sums[SIZE];                                                                    \
        __builtin_memcpy(sums, sum, sizeof sums);                                              \
        for (int j = 0; j < SIZE; j++) to[j] = sums[j] * scale + bias;                         \
        for (int j = 0; j < SIZE && self->activation; j++)                                     \
          to[j] = activate(to[j], self->activation, (float)self->slope);                       \
      } else {                                                                                 \
        const ints factor = (ints){0} + self->factor[row];                                     \
        const ints offset = (ints){0} + self->offset[row];                                     \
        EACH(int j = 0; j < SIZE / SHORTS; j++)                                                \
          ((ints *)(y + row * SIZE))[j] = passed_on(self, sum[j], factor, offset);             \
      }                                                                                        \
    }                                                                                          \
  }                                                                                            \
  static void NAME##_all(const network *net, int64_t n, const float *x, float *out,            \
                         float *scratch) {                                                     \
    const int_layer *layers = (const int_layer *)net->layers;                                  \
    int16_t *here = (int16_t *)(scratch + net->width * SIZE), *there = here + net->width * SIZE; \
    const float inverse = (float)layers->inverse, limit = (float)layers->limit;                \
    for (int64_t f = 0; f < net->n_used; f += 16) {                                            \
      const int64_t left = net->n_used - f, some = left < 16 ? left : 16;                      \
      turn_some(net, n, SIZE, x, f / 4, scratch);                                              \
      for (int64_t i = 0; i < some * SIZE; i++)                                                \
        here[f * SIZE + i] = counted(scratch[i], inverse, limit);                              \
    }                                                                                          \
    for (int64_t i = 0; i < net->n_layers; i++) {                                              \
      NAME(layers + i, here, there, i + 1 == net->n_layers ? scratch : 0);                     \
      int16_t *swap = here; here = there; there = swap;                                        \
    }                                                                                          \
    turn_out(net->n_outputs, n, SIZE, scratch, out);                                           \
  }

INT_BLOCK(int_wide, INT_WIDE)
INT_BLOCK(int_narrow, SHORTS)

/* Some groups of SHORTS outputs in registers. Weights are (n_in, SIZE * SHORTS). */
#define GROUPS(NAME, SIZE)                                                                     \
  static void NAME(const int8_t *weight, const int16_t *x, const int32_t *list, int64_t n,     \
                   ints *sums) {                                                               \
    ints sum[SIZE];                                                                            \
    EACH(int j = 0; j < SIZE; j++) sum[j] = (ints){0};                                         \
    for (int64_t i = 0; i < n; i++) {                                                          \
      const ints input = (ints){0} + x[list[i]];                                               \
      const int8_t *from = weight + (int64_t)list[i] * SIZE * SHORTS;                          \
      EACH(int j = 0; j < SIZE; j++) sum[j] += product(widened(from + j * SHORTS), input);     \
    }                                                                                          \
    EACH(int j = 0; j < SIZE; j++) sums[j] = sum[j];                                           \
  }

GROUPS(groups8, 8)
GROUPS(groups1, 1)

/* x has n_in numbers; sums are rounded up to whole groups, and there is room for 4 more */
static void int_one(const int_layer *self, const int16_t *x, int16_t *sums, int32_t *list) {
  const int64_t n_groups = (self->n_out + SHORTS - 1) / SHORTS, column = self->n_in * SHORTS;
  int64_t n = 0, g = 0;
  for (int64_t i = 0; i < self->n_in; i++) {
    list[n] = (int32_t)i;
    n += x[i] != 0;
  }
  if (self->columns) {
    for (; g + 8 <= n_groups; g += 8)
      groups8(self->columns + g * column, x, list, n, (ints *)sums + g);
    for (; g < n_groups; g++) groups1(self->columns + g * column, x, list, n, (ints *)sums + g);
    return;
  }
  const uint16_t *rows = self->row;
  for (; g < n_groups; g++) ((ints *)sums)[g] = (ints){0};
  for (int64_t i = 0; i < n; i++) {
    const int32_t input = 2 * x[list[i]], end = self->first[list[i] + 1];
    for (int32_t k = self->first[list[i]]; k < end; k += 4) { /* different outputs */
      int16_t sum[4];
      EACH(int j = 0; j < 4; j++)
        sum[j] = (int16_t)(sums[rows[k + j]] + ((input * self->weight[k + j] + 128) >> 8));
      EACH(int j = 0; j < 4; j++) sums[rows[k + j]] = sum[j];
    }
  }
}

static void int_one_all(const network *net, const float *x, float *out, float *scratch) {
  const int_layer *layers = (const int_layer *)net->layers, *end = layers + net->n_layers;
  const int64_t room = (net->width / SHORTS + 2) * SHORTS;
  int16_t *here = (int16_t *)scratch, *sums = here + room;
  int32_t *list = (int32_t *)(sums + room);
  const float inverse = (float)layers->inverse, limit = (float)layers->limit;
  for (int64_t q = 0; q < net->n_used / 4; q++)
    for (int64_t f = 0; f < 4; f++) here[4 * q + f] = counted(x[net->quads[q] + f], inverse, limit);
  for (int64_t f = 0; f < net->n_used && net->n_used < 4; f++)
    here[f] = counted(x[f], inverse, limit);
  for (const int_layer *self = layers; self < end; self++) {
    int_one(self, here, sums, list);
    for (int64_t row = 0; self + 1 < end && row < self->n_out; row += SHORTS) {
      const ints factor = *(const ints *)(self->factor + row);
      const ints offset = *(const ints *)(self->offset + row);
      *(ints *)(here + row) = passed_on(self, *(const ints *)(sums + row), factor, offset);
    }
  }
  const int_layer *last = end - 1;
  for (int64_t row = 0; row < last->n_out; row++)
    out[row] = activate(sums[row] * last->scale[row] + last->bias[row], last->activation,
                        (float)last->slope);
}

/* x is (n, n_features), out (n, n_outputs), scratch 2 * width * 64 floats, 64-byte aligned */
void bayesieve_run_integers(const network *net, int64_t n, const float *x, float *out,
                            float *scratch) {
  while (n > 0) {
    int64_t done = n >= INT_WIDE ? INT_WIDE : n >= SHORTS ? SHORTS : n > FEW ? n : 1;
    if (done == INT_WIDE) int_wide_all(net, done, x, out, scratch);
    else if (done > 1) int_narrow_all(net, done, x, out, scratch);
    else int_one_all(net, x, out, scratch);
    n -= done, x += done * net->n_features, out += done * net->n_outputs;
  }
}
