/* Sparse convolutions of images, one after another, in one call.
 *
 * A value is a stack of planes, each an image with a margin of zeros, so that padding costs nothing.
 * A convolution computes a tile of an output plane at a time: the tile stays in registers while
 * every kept weight of that output channel adds its factor times a shifted window of an input plane.
 * A zero costs nothing. Windows of a strided convolution would not be contiguous: its input is first
 * copied with the columns of each remainder side by side ("unzipped").
 */

#if LANES == 16 /* narrow images take half a register */
#define HALF 8
#else
#define HALF LANES
#endif
typedef float half __attribute__((vector_size(4 * HALF)));
typedef float loose_half __attribute__((vector_size(4 * HALF), aligned(4)));

typedef struct {
  int64_t height, width; /* of an image without margins */
  int64_t row, plane;    /* floats from a row to the next, from a plane to the next */
  int64_t at;            /* float in the scratch memory where the first image begins */
} image;

typedef struct {
  int64_t kind; /* 0 convolution, 1 largest of a window, 2 mean of a window, 3 unzip columns */
  image out;
  int64_t n_out;          /* planes made; planes read, of 3 */
  int64_t in_row;         /* floats from a row of the input to the next */
  int64_t down, across;   /* rows and columns from a window to the next */
  int64_t high, wide;     /* of a window that is pooled */
  int64_t activation, lanes;
  double slope, divisor;  /* of the leaky ReLU, of a mean */
  const int32_t *start;   /* 0: n_out + 1, the weights of each plane; else where planes begin */
  const int32_t *offset;  /* of each weight: the float it meets for the output at (0, 0) */
  const float *weight;
  const float *bias;      /* n_out */
  const int32_t *added;   /* n_out: where the plane to add begins, or -1; or NULL */
} step;

typedef struct {
  int64_t n_steps, n_planes, n_features; /* planes of the input, floats of the output */
  image in;
  const step *steps;
  const int32_t *gathered; /* n_features places in the scratch memory */
} program;

#define TILE(NAME, VECTOR, LOOSE, SIZE, ROWS, COLUMNS)                                       \
  static void NAME(const step *s, const float *in, float *out, const float *added,           \
                   int32_t from, int32_t to, float bias) {                                   \
    VECTOR sum[ROWS * COLUMNS];                                                              \
    const int64_t below = s->down * s->in_row, next = s->out.row;                            \
    const int32_t *offset = s->offset;                                                       \
    const float *weight = s->weight;                                                         \
    EACH(int i = 0; i < ROWS * COLUMNS; i++) sum[i] = (VECTOR){0} + bias;                    \
    if (added)                                                                               \
      EACH(int r = 0; r < ROWS; r++)                                                         \
        EACH(int c = 0; c < COLUMNS; c++)                                                    \
          sum[r * COLUMNS + c] += *(const LOOSE *)(added + r * next + c * SIZE);             \
    for (int32_t k = from; k < to; k++) {                                                    \
      const float *x = in + offset[k];                                                       \
      const float w = weight[k];                                                             \
      EACH(int r = 0; r < ROWS; r++)                                                         \
        EACH(int c = 0; c < COLUMNS; c++)                                                    \
          sum[r * COLUMNS + c] += w * *(const LOOSE *)(x + r * below + c * SIZE);            \
    }                                                                                        \
    if (s->activation == 1)                                                                  \
      EACH(int i = 0; i < ROWS * COLUMNS; i++)                                               \
        sum[i] = (VECTOR)((__typeof__(sum[i] < 0))sum[i] & ~(sum[i] < 0));                   \
    EACH(int r = 0; r < ROWS; r++)                                                           \
      EACH(int c = 0; c < COLUMNS; c++)                                                      \
        *(LOOSE *)(out + r * next + c * SIZE) = sum[r * COLUMNS + c];                        \
  }

#define TILES(ROWS, COLUMNS)                                                                 \
  TILE(half_##ROWS##_##COLUMNS, half, loose_half, HALF, ROWS, COLUMNS)                       \
  TILE(full_##ROWS##_##COLUMNS, vec, loose, LANES, ROWS, COLUMNS)

TILES(8, 1) TILES(4, 1) TILES(1, 1) TILES(4, 2) TILES(1, 2) TILES(4, 3) TILES(1, 3)

typedef void (*tile)(const step *, const float *, float *, const float *, int32_t, int32_t, float);

static void convolve(const step *s, float *scratch) {
  static const tile halves[3][3] = {{half_1_1, half_1_2, half_1_3},
                                    {half_4_1, half_4_2, half_4_3}, {half_8_1, 0, 0}};
  static const tile fulls[3][3] = {{full_1_1, full_1_2, full_1_3},
                                   {full_4_1, full_4_2, full_4_3}, {full_8_1, 0, 0}};
  const int64_t height = s->out.height, width = s->out.width, lanes = s->lanes;
  const int64_t vectors = (width + lanes - 1) / lanes; /* in a row */
  const int64_t columns = vectors % 3 == 0 ? 3 : vectors % 2 == 0 ? 2 : 1;
  const int64_t tall = columns == 1 && height >= 8 ? 8 : height >= 4 ? 4 : 1;
  const int ends = s->activation > 1 || vectors * lanes > width; /* more to do after a tile */
  const tile run = (lanes == LANES ? fulls : halves)[tall == 8 ? 2 : tall == 4][columns - 1];
  for (int64_t top = 0; top < height; top += tall) {
    const int64_t y = top + tall > height ? height - tall : top; /* the last tile may overlap */
    const float *in = scratch + y * s->down * s->in_row;
    for (int64_t o = 0; o < s->n_out; o++) {
      float *to = scratch + s->out.at + o * s->out.plane + y * s->out.row;
      const float *added = 0;
      if (s->added && s->added[o] >= 0) added = scratch + s->added[o] + y * s->out.row;
      for (int64_t x = 0; x < vectors * lanes; x += columns * lanes)
        run(s, in + x, to + x, added ? added + x : 0, s->start[o], s->start[o + 1], s->bias[o]);
      for (int64_t r = 0; r < tall && ends; r++, to += s->out.row) {
        if (s->activation > 1)
          for (int64_t x = 0; x < width; x++)
            to[x] = activate(to[x], s->activation, (float)s->slope);
        for (int64_t x = width; x < vectors * lanes; x++) to[x] = 0; /* the margin stays 0 */
      }
    }
  }
}

/* no branch: which of two pixels is larger cannot be guessed; NaN wins */
static inline float larger(float a, float b) { return (a > b) | (a != a) ? a : b; }

static inline four larger4(four a, four b) {
  const places first = (a > b) | (a != a);
  return (four)(((places)a & first) | ((places)b & ~first));
}

/* largest of windows of 2 by 2 that do not overlap, in a row of n */
static void pool_pairs(const float *a, const float *b, float *to, int64_t n) {
  int64_t x = 0;
  for (; x + 4 <= n; x += 4, a += 8, b += 8) {
    const four low = larger4(*(const four *)a, *(const four *)b);
    const four high = larger4(*(const four *)(a + 4), *(const four *)(b + 4));
    *(four *)(to + x) = larger4(MIX(low, high, 0, 2, 4, 6), MIX(low, high, 1, 3, 5, 7));
  }
  for (; x < n; x++, a += 2, b += 2) to[x] = larger(larger(a[0], a[1]), larger(b[0], b[1]));
}

static float largest(const float *window, int64_t row, int64_t high, int64_t wide) {
  float result = window[0];
  for (int64_t i = 0; i < high; i++, window += row)
    for (int64_t j = 0; j < wide; j++) result = larger(window[j], result);
  return result;
}

static float total(const float *window, int64_t row, int64_t high, int64_t wide) {
  four sums = {0};
  float rest = 0;
  for (int64_t i = 0; i < high; i++, window += row) {
    int64_t j = 0;
    for (; j + 4 <= wide; j += 4) sums += *(const four *)(window + j);
    for (; j < wide; j++) rest += window[j];
  }
  return rest + (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

static void pool(const step *s, float *scratch) {
  const int64_t width = s->out.width, row = s->in_row;
  const int pairs = s->kind == 1 && s->high == 2 && s->wide == 2 && s->across == 2;
  for (int64_t o = 0; o < s->n_out; o++) {
    const float *from = scratch + s->start[o];
    float *to = scratch + s->out.at + o * s->out.plane;
    for (int64_t y = 0; y < s->out.height; y++, from += s->down * row, to += s->out.row) {
      if (pairs) pool_pairs(from, from + row, to, width);
      for (int64_t x = 0; x < width && !pairs; x++) {
        const float *window = from + x * s->across;
        to[x] = s->kind == 1 ? largest(window, row, s->high, s->wide)
                             : total(window, row, s->high, s->wide) / (float)s->divisor;
      }
    }
  }
}

/* each plane that is read becomes `across` planes: its columns by their remainder */
static void unzip(const step *s, float *scratch) {
  const int64_t n = s->across;
  for (int64_t o = 0; o < s->n_out; o++)
    for (int64_t y = 0; y < s->out.height; y++) {
      const float *from = scratch + s->start[o] + y * s->in_row;
      float *to = scratch + s->out.at + o * n * s->out.plane + y * s->out.row;
      float *odd = to + s->out.plane;
      for (int64_t x = 0; n == 2 && x < s->out.width; x++)
        to[x] = from[2 * x], odd[x] = from[2 * x + 1];
      for (int64_t j = 0; n > 2 && j < n; j++)
        for (int64_t x = 0; x < s->out.width; x++) to[j * s->out.plane + x] = from[n * x + j];
    }
}

/* x is (n, planes, height, width), out (n, n_features); margins in scratch are 0 */
void bayesieve_images(const program *p, int64_t n, const float *x, float *out, float *scratch) {
  for (int64_t i = 0; i < n; i++, out += p->n_features) {
    for (int64_t c = 0; c < p->n_planes; c++)
      for (int64_t y = 0; y < p->in.height; y++, x += p->in.width) {
        float *to = scratch + p->in.at + c * p->in.plane + y * p->in.row;
        for (int64_t j = 0; j < p->in.width; j++) to[j] = x[j];
      }
    for (int64_t k = 0; k < p->n_steps; k++) {
      const step *s = p->steps + k;
      if (s->kind == 0) convolve(s, scratch);
      else if (s->kind == 3) unzip(s, scratch);
      else pool(s, scratch);
    }
    for (int64_t f = 0; f < p->n_features; f++) out[f] = scratch[p->gathered[f]];
  }
}
