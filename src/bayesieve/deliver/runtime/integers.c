/* Sparse affine layers with 8-bit weights and 16-bit inputs and sums, in one call.
 *
 * Inputs are integers A, counted in steps. Each stored weight q adds round(A q / 128) to a sum of 16
 * bits. Inputs are cut at a limit that no sum can leave 16 bits with, so that neither the order of
 * the weights nor the path changes a result. A register holds twice as many 16-bit numbers as
 * floats. Batches run as those of floats, in bundles of outputs. One example runs over its inputs that
 * are not 0: layers with few zeros by whole columns of weights, others weight by weight.
 */
#if defined(__AVX512BW__)
#define SHORTS 32
#elif defined(__AVX2__)
#define SHORTS 16
#else
#define SHORTS 8
#endif
#define INT_WIDE 64 /* examples of a block */
#define INT_AT_ONCE (SHORTS == 32 ? 8 : 2) /* outputs of a bundle */
typedef int16_t ints __attribute__((vector_size(2 * SHORTS)));
typedef int8_t loose_chars __attribute__((vector_size(SHORTS), aligned(1)));

const int64_t bayesieve_shorts = SHORTS, bayesieve_int_at_once = INT_AT_ONCE;

typedef struct {
  int64_t n_in, n_out, activation; /* as in layers.c; between layers only none or ReLU */
  double slope;
  int64_t limit;          /* largest input, in steps */
  double inverse;         /* of a step of the inputs */
  int64_t n_runs;
  const run *runs;        /* of one tile */
  const int32_t *output;  /* as in layers.c */
  const uint16_t *column;
  const int8_t *value;
  const int8_t *columns;  /* all weights, SHORTS outputs at a time, or NULL: see int_columns */
  const int32_t *first;   /* n_in + 1: the weights of each input, else */
  const uint16_t *row;    /* of each weight */
  const int8_t *weight;
  const int16_t *factor;  /* n_out + 1: sums to steps of the next layer's inputs, times 2^15 */
  const int16_t *offset;  /* n_out + 1: the bias in those steps */
  const float *scale;     /* n_out + 1: sums to outputs */
  const float *bias;      /* n_out + 1 */
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

/* Four weights in every 32 bits of a register, and 256 times one of them in all places: a byte above
 * a 0. Which byte is said by PLACES, which a compiler would load anew for each weight if it knew
 * them: loads are what this loop waits for. */
#if defined(__SSSE3__)
#define PLACES                                                                                 \
  ints above[4];                                                                               \
  EACH(int i = 0; i < 4; i++) {                                                                \
    above[i] = (ints){0} + (int16_t)(0x0080 + 0x100 * i); /* none, and the i-th */             \
    __asm__("" : "+x"(above[i]));                                                              \
  }
#else
#define PLACES
#endif
#if defined(__AVX512BW__)
#define WHOLE_FOUR(FROM) (ints)_mm512_set1_epi32(together(FROM))
#define WHOLE_NTH(V, I) (ints)_mm512_shuffle_epi8((__m512i)(V), (__m512i)above[I])
#elif defined(__AVX2__)
#define WHOLE_FOUR(FROM) (ints)_mm256_set1_epi32(together(FROM))
#define WHOLE_NTH(V, I) (ints)_mm256_shuffle_epi8((__m256i)(V), (__m256i)above[I])
#elif defined(__SSSE3__)
#define WHOLE_FOUR(FROM) (ints)_mm_set1_epi32(together(FROM))
#define WHOLE_NTH(V, I) (ints)_mm_shuffle_epi8((__m128i)(V), (__m128i)above[I])
#else
#define WHOLE_FOUR(FROM) {0}
#define WHOLE_NTH(V, I) ((ints){0} + (int16_t)(256 * value[I]))
#endif
static inline int32_t together(const int8_t *four) {
  int32_t all;
  __builtin_memcpy(&all, four, sizeof all);
  return all;
}
#define WHOLE_TIMES(A, B) product(A, B)
typedef ints WHOLE;

/* an output's sums to inputs of the next layer, y, or, of the last layer, to out */
#define INT_END(SIZE)                                                                          \
  if (out) {                                                                                   \
    const float scale = self->scale[row], bias = self->bias[row];                              \
    float *to = out + row * SIZE;                                                              \
    int16_t sums[SIZE];                                                                        \
    __builtin_memcpy(sums, sum[i], sizeof sums);                                               \
    for (int j = 0; j < SIZE; j++) to[j] = sums[j] * scale + bias;                             \
    for (int j = 0; j < SIZE && self->activation; j++)                                         \
      to[j] = activate(to[j], self->activation, (float)self->slope);                           \
  } else {                                                                                     \
    const ints factor = (ints){0} + self->factor[row], offset = (ints){0} + self->offset[row]; \
    EACH(int j = 0; j < SIZE / SHORTS; j++)                                                    \
      ((ints *)(y + row * SIZE))[j] = passed_on(self, sum[i][j], factor, offset);              \
  }

/* as RUN in layers.c: x is (n_in, SIZE), aligned to 64 bytes, out and y are (n_out + 1, SIZE) */
#define INT_RUN(NAME, SIZE, OUTS)                                                              \
  INLINE void NAME(const int_layer *self, const run *now, const int32_t *output,               \
                   const uint16_t *column, const int8_t *value, const int16_t *x, int16_t *y,  \
                   float *out) {                                                               \
    PLACES                                                                                     \
    for (int32_t bundle = 0; bundle < now->n_bundles; bundle++, output += OUTS) {              \
      ints sum[OUTS][SIZE / SHORTS];                                                           \
      EACH(int i = 0; i < OUTS; i++)                                                           \
        EACH(int j = 0; j < SIZE / SHORTS; j++) sum[i][j] = (ints){0};                         \
      STEPS(WHOLE, SIZE, OUTS)                                                                 \
      EACH(int i = 0; i < OUTS; i++) {                                                         \
        const int64_t row = output[i];                                                         \
        INT_END(SIZE)                                                                          \
      }                                                                                        \
    }                                                                                          \
  }

#define INT_BLOCK(NAME, SIZE)                                                                  \
  INT_RUN(NAME##_two, SIZE, 2)                                                                 \
  INT_RUN(NAME##_more, SIZE, INT_AT_ONCE)                                                      \
  static void NAME(const int_layer *self, const int16_t *x, int16_t *y, float *out) {          \
    const int32_t *output = self->output;                                                      \
    const uint16_t *column = self->column;                                                     \
    const int8_t *value = self->value;                                                         \
    for (const run *now = self->runs, *end = now + self->n_runs; now < end; now++) {           \
      if (INT_AT_ONCE == 2 || now->outputs == 2)                                               \
        NAME##_two(self, now, output, column, value, x, y, out);                               \
      else NAME##_more(self, now, output, column, value, x, y, out);                           \
      const int64_t n = 4 * (int64_t)now->steps * now->n_bundles;                              \
      output += now->outputs * (int64_t)now->n_bundles, column += n, value += n;               \
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

/* as in layers.c */
static int64_t int_listed(const int16_t *x, int64_t n_in, int32_t *list) {
  int64_t n = 0;
#if defined(__AVX512BW__)
  for (int64_t i = 0; i < n_in; i += 16) {
    const __m512i some = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)(x + i)));
    n = append(list, n, i, _mm512_test_epi32_mask(some, some) & LEADING(n_in - i));
  }
#else
  for (int64_t i = 0; i < n_in; i++) {
    list[n] = (int32_t)i;
    n += x[i] != 0;
  }
#endif
  return n;
}

/* x has n_in numbers; sums are rounded up to whole groups, and there is room for 4 more */
static void int_one(const int_layer *self, const int16_t *x, int16_t *sums, int32_t *list) {
  const int64_t n_groups = (self->n_out + SHORTS - 1) / SHORTS, column = self->n_in * SHORTS;
  const int64_t n = int_listed(x, self->n_in, list);
  int64_t g = 0;
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
