/* Mean-field posteriors: draws of all weights, and one Adam step.
 *
 * Plain loops over arrays, written so that compilers turn them into vector instructions. Each has a
 * twin in Python that it is tested against: `draw_weights_`, `spread_` and `counter_normals`
 * in core/noise.py, `move_` in engines/variational.py and in engines/scaled.py, `_move_scales_` in
 * engines/bmr.py.
 */
#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
static inline float float_of(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }

typedef uint16_t bf16; /* bfloat16: the upper half of a float */
static inline float widened(bf16 x) { return float_of((uint32_t)x << 16); }
static inline bf16 shortened(float x) { /* to the nearest, of two the even one */
  const uint32_t bits = bits_of(x);
  return (bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline int32_t least_signed(int32_t a, int32_t b) { return a < b ? a : b; }

/* e^x to 2 units in the last place; x is taken into [-87.3, 88], by its bits, whose order as whole
 * numbers is that of positive floats, and the reverse of that of negative ones */
static inline float exp_(float x) {
  x = float_of(least(bits_of(x), 0xc2ae999aU));                               /* -87.3 */
  x = float_of((uint32_t)least_signed((int32_t)bits_of(x), 0x42b00000));      /* 88 */
  const float t = x * 1.44269504f + 12582912.0f, k = t - 12582912.0f; /* k is a whole number */
  const float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1;
  return float_of(bits_of(p) + (bits_of(t) << 23));
}

/* log x of a positive normal number, to 3e-7 of it */
static inline float log_(float x) {
  const uint32_t bits = bits_of(x) - 0x3f3504f3; /* sqrt(1/2): the fraction ends up around 1 */
  const float k = (float)((int32_t)bits >> 23);
  const float f = float_of((bits & 0x007fffff) + 0x3f3504f3) - 1;
  float p = -1.0378707e-1f;
  p = p * f + 1.6338142e-1f;
  p = p * f - 1.7212428e-1f;
  p = p * f + 1.9884236e-1f;
  p = p * f - 2.4971560e-1f;
  p = p * f + 3.3335608e-1f;
  p = p * f - 5.0000344e-1f;
  p = p * f + 9.9999992e-1f;
  return p * f + k * 6.9314718e-1f;
}

static inline uint32_t mix(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

/* the i-th pair of normals, as in core/noise.py */
static inline void normals(uint32_t i, const uint32_t *keys, float *first, float *second) {
  const uint32_t a = mix(i ^ keys[0]), b = mix(a + keys[1]), c = mix(a + keys[2]);
  const float u = ((float)(int32_t)(b & 0x7fffffff) + 1) * 4.656612873077393e-10f;
  const float radius = __builtin_sqrtf(-2 * log_(u));
  const uint32_t q = c + 0x20000000U; /* its upper two bits are the nearest quarter turn */
  const float t = (float)(int32_t)(c - (q & 0xc0000000U)) * 1.4629180792671596e-9f; /* pi/2 / 2^30 */
  const float z = t * t;
  const float sine = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * t + t;
  const float cosine = ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z
                        + 4.166664568298827e-2f) * z * z - 0.5f * z + 1;
  /* odd quarters swap the two, and signs are bits: no branch for a compiler to stumble over */
  const uint32_t odd = (uint32_t)((int32_t)(q << 1) >> 31), sign = 0x80000000U;
  const uint32_t swap = (bits_of(sine) ^ bits_of(cosine)) & odd;
  *first = radius * float_of(bits_of(cosine) ^ swap ^ ((q ^ (q << 1)) & sign));
  *second = radius * float_of(bits_of(sine) ^ swap ^ (q & sign));
}

#define CHUNK 1024 /* weights at a time: they stay in the cache */

static void mask(int64_t n, const uint8_t *restrict keep, float *restrict w) {
  for (int64_t i = 0; i < n; i++) w[i] *= keep[i];
}

/* w = mean + std ε of the first n of d weights of k posteriors, mean of the others; times keep */
void bayesieve_draw(int64_t k, int64_t n, int64_t d, const float *restrict mean,
                    const float *restrict log_std, const uint8_t *restrict keep,
                    const uint32_t *keys, float *restrict w) {
  const int64_t half = (n + 1) / 2; /* one normal of a pair is here, the other as far as `half` on */
  const uint32_t key[3] = {keys[0], keys[1], keys[2]};
  for (int64_t row = 0; row < k; row++, mean += d, log_std += n, w += d) {
    const float *restrict mean2 = mean + half, *restrict log_std2 = log_std + half;
    float *restrict w2 = w + half, a, b;
    for (int64_t start = 0, end; start < n - half; start = end) {
      end = start + CHUNK < n - half ? start + CHUNK : n - half;
      for (int64_t i = start; i < end; i++) {
        normals((uint32_t)(row * half + i), key, &a, &b);
        w[i] = mean[i] + exp_(log_std[i]) * a;
        w2[i] = mean2[i] + exp_(log_std2[i]) * b;
      }
      if (keep) mask(end - start, keep + start, w + start), mask(end - start, keep + half + start, w2 + start);
    }
    if (n % 2) {
      normals((uint32_t)(row * half + half - 1), key, &a, &b);
      w[half - 1] = mean[half - 1] + exp_(log_std[half - 1]) * a;
      if (keep) w[half - 1] *= keep[half - 1];
    }
    for (int64_t i = n; i < d; i++) w[i] = mean[i];
    if (keep) mask(d - n, keep + n, w + n), keep += d;
  }
}

typedef struct { int64_t start, stop, first, last; } run; /* entries of a tensor, and their groups */

/* the first n of d weights times the number of their group, (k, groups), and all times keep */
void bayesieve_scale(int64_t k, int64_t n, int64_t d, int64_t n_runs, int64_t groups, const run *runs,
                     const float *restrict ratio, const uint8_t *restrict keep, float *restrict w) {
  for (int64_t row = 0; row < k; row++, ratio += groups, w += d) {
    for (const run *r = runs; r < runs + n_runs; r++) {
      const int64_t size = (r->stop - r->start) / (r->last - r->first);
      for (int64_t g = r->first, at = r->start; g < r->last; g++, at += size) {
        const float by = ratio[g];
        if (keep)
          for (int64_t i = at; i < at + size; i++) w[i] *= by * keep[i];
        else
          for (int64_t i = at; i < at + size; i++) w[i] *= by;
      }
    }
    if (keep) mask(d - n, keep + n, w + n), keep += d;
  }
}

/* w = mean, and variance = std^2, `brief` in bfloat16, of n weights, times keep; those that are NULL
 * are left out */
static void spread(int64_t n, const float *restrict mean, const float *restrict log_std,
                   const uint8_t *restrict keep, float *restrict w, float *restrict variance,
                   bf16 *restrict brief) {
  float kept[CHUNK], *restrict to = variance ? variance : kept;
  for (int64_t i = 0; i < n; i++) w[i] = mean[i] * keep[i];
  if (!log_std) return;
  for (int64_t i = 0; i < n; i++) to[i] = exp_(2 * log_std[i]) * keep[i];
  if (brief)
    for (int64_t i = 0; i < n; i++) brief[i] = shortened(to[i]);
}

static const float zeros[CHUNK];
static const uint8_t ones[CHUNK] = {[0 ... CHUNK - 1] = 1};

/* mean and variance of d weights, apart, times keep; variance 0 from n on. `brief`, where it is not
 * NULL, has the variances in bfloat16. */
void bayesieve_spread(int64_t k, int64_t n, int64_t d, const float *restrict mean,
                      const float *restrict log_std, const uint8_t *restrict keep,
                      float *restrict w, float *restrict variance, bf16 *restrict brief) {
  for (int64_t row = 0; row < k; row++, mean += d, log_std += n, w += d, variance += d) {
    for (int64_t at = 0, end; at < d; at = end) {
      const int64_t limit = at < n ? n : d;
      end = at + CHUNK < limit ? at + CHUNK : limit;
      spread(end - at, mean + at, at < n ? log_std + at : 0, keep ? keep + at : ones, w + at,
             variance + at, brief ? brief + at : 0);
    }
    memset(variance + n, 0, (d - n) * sizeof(float));
    if (brief) memset(brief + n, 0, (d - n) * sizeof(bf16)), brief += d;
    if (keep) keep += d;
  }
}

/* k draws of one posterior: mean + std ε of the first n of d weights, mean of the others */
void bayesieve_draws(int64_t k, int64_t n, int64_t d, const float *restrict mean,
                     const float *restrict std, const uint32_t *keys, float *restrict w) {
  const int64_t half = (n + 1) / 2;
  const uint32_t key[3] = {keys[0], keys[1], keys[2]};
  const float *restrict mean2 = mean + half, *restrict std2 = std + half;
  for (int64_t row = 0; row < k; row++, w += d) {
    float *restrict w2 = w + half, a, b;
    for (int64_t i = 0; i < n - half; i++) {
      normals((uint32_t)(row * half + i), key, &a, &b);
      w[i] = mean[i] + std[i] * a;
      w2[i] = mean2[i] + std2[i] * b;
    }
    if (n % 2) {
      normals((uint32_t)(row * half + half - 1), key, &a, &b);
      w[half - 1] = mean[half - 1] + std[half - 1] * a;
    }
    for (int64_t i = n; i < d; i++) w[i] = mean[i];
  }
}

/* Mean and variance of max(x, 0), x ~ N(mean, variance); Phi by Abramowitz and Stegun, 7.1.26 */
void bayesieve_relu_moments(int64_t n, const float *restrict mean, const float *restrict variance,
                            float *restrict first, float *restrict spread) {
  for (int64_t i = 0; i < n; i++) {
    const float a = mean[i], v = variance[i], std = __builtin_sqrtf(v < 1e-30f ? 1e-30f : v);
    const float z = a / std, size = float_of(bits_of(z) & 0x7fffffffU);
    const float density = exp_(-0.5f * z * z);
    const float t = 1 / (1 + 0.3275911f * 0.70710678f * size);
    float p = 1.061405429f;
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const float tail = 0.5f * p * t * density, below = z < 0 ? tail : 1 - tail;
    const float m = a * below + std * 0.39894228f * density;
    const float s = v * below + m * (a - m);
    first[i] = m < 0 ? 0 : m;
    spread[i] = s < 0 ? 0 : s;
  }
}

typedef struct { /* gradients of the log-likelihood for entries of w, (k, stop - start) each */
  const float *grad;              /* 0 where NULL */
  const void *variance_grad;      /* with noise on activations; 0 where NULL */
  int64_t start, stop, is_brief;  /* the last: whether variance_grad is in bfloat16 */
} piece;

typedef struct {
  const piece *pieces;            /* in order, of all d entries */
  const float *w;                 /* (k, d): a draw; NULL with noise on activations */
  float *mean, *mean1, *mean2;    /* (k, d): with the moments of its gradient */
  float *log_std, *std1, *std2;   /* (k, n) */
  const uint8_t *keep, *trained;  /* (k, d): 0 or 1, or NULL */
  const float *numbers;           /* (k, 6): log_odds, gap and slab of the prior, kl / N, and of
                                     Adam the length of a step and the factor of the second moment */
} posterior;

enum { WEIGHTS, ACTIVATIONS }; /* where the noise is: what says how log std should move */

typedef struct { /* the tensors of `posterior` at one place; extra is variance_grad */
  int64_t n;
  int bayesian;                   /* whether all n entries have a posterior; otherwise none has */
  const float *grad, *w, *extra;
  float *mean, *mean1, *mean2, *log_std, *std1, *std2;
  const uint8_t *keep, *trained;
} chunk;

/* The chunk of a row and a piece from `start` on, which ends at `stop` or before; `wide` has room for
 * a chunk of gradients that are in bfloat16 */
static chunk chunk_at(const posterior *q, const piece *p, int64_t row, int64_t n, int64_t d,
                      int64_t start, int64_t stop, float *restrict wide) {
  const int64_t at = row * d + start, std_at = row * n + start;
  const int64_t in_piece = row * (p->stop - p->start) + start - p->start;
  chunk c;
  c.n = start + CHUNK < stop ? CHUNK : stop - start;
  c.bayesian = start < n;
  if (c.bayesian && start + c.n > n) c.n = n - start;
  c.grad = p->grad ? p->grad + in_piece : zeros;
  c.w = q->w ? q->w + at : 0;
  c.extra = zeros;
  if (p->variance_grad && p->is_brief) {
    const bf16 *restrict brief = (const bf16 *)p->variance_grad + in_piece;
    for (int64_t i = 0; i < c.n; i++) wide[i] = widened(brief[i]);
    c.extra = wide;
  } else if (p->variance_grad) {
    c.extra = (const float *)p->variance_grad + in_piece;
  }
  c.mean = q->mean + at, c.mean1 = q->mean1 + at, c.mean2 = q->mean2 + at;
  c.log_std = q->log_std + std_at, c.std1 = q->std1 + std_at, c.std2 = q->std2 + std_at;
  c.keep = q->keep ? q->keep + at : ones;
  c.trained = q->trained ? q->trained + at : ones;
  return c;
}

static int noise_of(const posterior *q) { return q->w ? WEIGHTS : ACTIVATIONS; }

/* Moments of a gradient g, and a step along them: Adam's, and AdaBelief's */
#define ADAM(g, first, second, step)                                     \
  const float first##_ = 0.9f * first[i] + 0.1f * g;                     \
  const float second##_ = 0.999f * second[i] + 0.001f * g * g;           \
  first[i] = first##_, second[i] = second##_;                            \
  const float step = trained[i] * (length * first##_ / (__builtin_sqrtf(second##_) * factor + 1e-8f));
#define ADABELIEF(g, first, second, length, step)                        \
  const float first##_ = 0.9f * first[i] + 0.1f * g, first##_off = g - first##_; \
  const float second##_ = 0.999f * second[i] + 0.001f * first##_off * first##_off + 1e-16f; \
  first[i] = first##_, second[i] = second##_;                            \
  const float step = trained[i] * (length * first##_ / (__builtin_sqrtf(second##_) * factor + 1e-16f));

#define ALWAYS static inline __attribute__((always_inline))
#define ARRAYS(c)                                                                                \
  const float *restrict grad = c.grad, *restrict w = c.w, *restrict extra = c.extra;             \
  float *restrict mean = c.mean, *restrict mean1 = c.mean1, *restrict mean2 = c.mean2;           \
  float *restrict log_std = c.log_std, *restrict std1 = c.std1, *restrict std2 = c.std2;         \
  const uint8_t *restrict keep = c.keep, *restrict trained = c.trained;

/* One pass over a chunk; `noise` and `mixed` are constants where this is called */
ALWAYS void adam(chunk c, const float *numbers, float per, const int noise, const int mixed) {
  const float odds = numbers[0], gap = numbers[1], slab = numbers[2], kl = numbers[3];
  const float length = numbers[4], factor = numbers[5];
  ARRAYS(c)
#pragma omp simd
  for (int64_t i = 0; i < c.n; i++) {
    const float m = mean[i], s = exp_(log_std[i]), variance = s * s;
    const float kappa = mixed ? slab + gap / (1 + exp_(odds + 0.5f * gap * (m * m + variance))) : slab;
    float data; /* gradient of the log-likelihood for log std */
    if (noise == ACTIVATIONS) data = 2 * variance * extra[i] * keep[i];
    else data = grad[i] * (w[i] - m) * keep[i];
    const float to_mean = kl * m * kappa - per * grad[i];
    const float to_std = kl * (variance * kappa - 1) - per * data;
    ADAM(to_mean, mean1, mean2, mean_step)
    mean[i] = m - mean_step;
    ADAM(to_std, std1, std2, std_step)
    log_std[i] -= std_step;
  }
}

static void adam_points(chunk c, const float *numbers, float per) {
  const float length = numbers[4], factor = numbers[5];
  ARRAYS(c)
  (void)w, (void)extra, (void)log_std, (void)std1, (void)std2, (void)keep;
  for (int64_t i = 0; i < c.n; i++) {
    const float to_mean = -per * grad[i];
    ADAM(to_mean, mean1, mean2, mean_step)
    mean[i] -= mean_step;
  }
}

typedef struct { /* (k, d) each: what the next step with noise on activations reads, see `spread` */
  float *w, *variance;
  bf16 *brief; /* NULL where no tensor has its variances in bfloat16 */
} spread_to;

/* One Adam step of k posteriors on (KL - log-likelihood) / N; per is 1 / N. The prior's precision is
 * slab + gap sigmoid(-(log_odds + gap e / 2)) at e = mean^2 + std^2.
 * `next`, where it is not NULL, is what `bayesieve_spread` would make of the result, while it is in
 * the cache; each tensor has its variances in one of the two forms. */
void bayesieve_adam(const posterior *q, int64_t n_pieces, int64_t k, int64_t n, int64_t d, float per,
                    const spread_to *next) {
  const int noise = noise_of(q);
  float wide[CHUNK];
  for (int64_t row = 0; row < k; row++) {
    const float *numbers = q->numbers + 6 * row;
    const int mixed = numbers[1] != 0;
    for (const piece *p = q->pieces; p < q->pieces + n_pieces; p++) {
      for (int64_t start = p->start; start < p->stop;) {
        const chunk c = chunk_at(q, p, row, n, d, start, p->stop, wide);
        if (!c.bayesian) adam_points(c, numbers, per);
        else if (noise == WEIGHTS && mixed) adam(c, numbers, per, WEIGHTS, 1);
        else if (noise == WEIGHTS) adam(c, numbers, per, WEIGHTS, 0);
        else if (mixed) adam(c, numbers, per, ACTIVATIONS, 1);
        else adam(c, numbers, per, ACTIVATIONS, 0);
        if (next) {
          const int64_t at = row * d + start;
          spread(c.n, c.mean, c.bayesian ? c.log_std : 0, c.keep, next->w + at,
                 p->is_brief ? 0 : next->variance + at, p->is_brief ? next->brief + at : 0);
        }
        start += c.n;
      }
    }
  }
}

typedef struct {
  posterior q;               /* its numbers are (k, 3): kl / N, and of AdaBelief the length of a step
                                and the factor of the second moment */
  const float *ratio, *width; /* (k, groups): of each group what w is multiplied by, and its prior's std */
  const run *runs;
  float *pulls;              /* (2, k, groups): sums for log ratio and log width */
} scaled;

/* One pass over a chunk of a group; adds to its sums */
ALWAYS void adabelief(chunk c, const float *numbers, float per, float ratio, float width,
                      float *pull, float *surplus, const int noise) {
  const float kl = numbers[0], length = numbers[1], factor = numbers[2];
  const float precision = 1 / (width * width), mean_length = length * width;
  float pulled = 0, excess = 0;
  ARRAYS(c)
#pragma omp simd reduction(+ : pulled, excess)
  for (int64_t i = 0; i < c.n; i++) {
    const float m = mean[i], s = exp_(log_std[i]), variance = s * s, to = keep[i] * grad[i] * ratio;
    float data; /* gradient of the log-likelihood for log std */
    if (noise == ACTIVATIONS) data = 2 * ratio * ratio * variance * extra[i] * keep[i];
    else data = keep[i] * grad[i] * (w[i] - ratio * m);
    pulled += to * m + data;
    excess += trained[i] * (1 - precision * (m * m + variance));
    const float to_mean = (kl * precision * m - per * to) * width;
    const float to_std = kl * (precision * variance - 1) - per * data;
    ADABELIEF(to_mean, mean1, mean2, mean_length, mean_step)
    ADABELIEF(to_std, std1, std2, length, std_step)
    mean[i] = m - mean_step;
    log_std[i] -= std_step;
  }
  *pull += pulled, *surplus += excess;
}

static void adabelief_points(chunk c, const float *numbers, float per) {
  const float point = 0.1f, length = numbers[1] * point, factor = numbers[2];
  ARRAYS(c)
  (void)w, (void)extra, (void)log_std, (void)std1, (void)std2, (void)keep;
  for (int64_t i = 0; i < c.n; i++) {
    const float to_mean = -per * point * grad[i];
    ADABELIEF(to_mean, mean1, mean2, length, mean_step)
    mean[i] -= mean_step;
  }
}

/* One AdaBelief step of k posteriors w = ratio (mean + std e) on (KL - log-likelihood) / N. Weights
 * without a posterior, from n on, move in units of `point`. Pieces are tensors, or one of all d. */
void bayesieve_adabelief(const scaled *s, int64_t n_pieces, int64_t k, int64_t n, int64_t d,
                         int64_t n_runs, int64_t groups, float per) {
  const posterior *q = &s->q;
  const int noise = noise_of(q);
  float wide[CHUNK];
  memset(s->pulls, 0, 2 * k * groups * sizeof(float));
  for (int64_t row = 0; row < k; row++) {
    const float *numbers = q->numbers + 3 * row;
    const piece *p = q->pieces, *last = q->pieces + n_pieces - 1;
    for (const run *r = s->runs; r < s->runs + n_runs; r++) {
      const int64_t each = (r->stop - r->start) / (r->last - r->first);
      while (p < last && p->stop <= r->start) p++;
      for (int64_t g = r->first, start = r->start; g < r->last; g++) {
        const float ratio = s->ratio[row * groups + g], width = s->width[row * groups + g];
        float *pull = s->pulls + row * groups + g, *surplus = pull + k * groups;
        for (const int64_t stop = start + each; start < stop;) {
          const chunk c = chunk_at(q, p, row, n, d, start, stop, wide);
          if (noise == WEIGHTS) adabelief(c, numbers, per, ratio, width, pull, surplus, WEIGHTS);
          else adabelief(c, numbers, per, ratio, width, pull, surplus, ACTIVATIONS);
          start += c.n;
        }
      }
    }
    for (p = q->pieces; p <= last; p++) {
      for (int64_t start = p->start > n ? p->start : n; start < p->stop;) {
        const chunk c = chunk_at(q, p, row, n, d, start, p->stop, wide);
        adabelief_points(c, numbers, per);
        start += c.n;
      }
    }
  }
}

typedef struct {
  float *mean, *mean1, *mean2;    /* (k, layers): of log c^-2, with the moments of its gradient */
  float *log_std, *std1, *std2;
  const float *noise;             /* (k, layers): of the draw of c */
  const float *pulls;             /* (2, k, layers): as `scaled` has them */
  const float *numbers;           /* (k, 5): those of `scaled`, and shape and rate of the prior */
} layer_scales;

/* One AdaBelief step of the scales of layers on (KL - log-likelihood) / N, with the weights
 * themselves held, or, `standard`, weights in units of their prior's std */
void bayesieve_layer_scales(const layer_scales *s, int64_t k, int64_t layers, int standard, float per) {
  const uint8_t trained[1] = {1};
  for (int64_t at = 0; at < k * layers; at++) {
    const float *numbers = s->numbers + 5 * (at / layers);
    const float kl = numbers[0], length = numbers[1], factor = numbers[2], shape = numbers[3];
    const float std = exp_(s->log_std[at]), expected = numbers[4] * exp_(s->mean[at] + 0.5f * std * std);
    const float pull = per * s->pulls[at], excess = kl * s->pulls[k * layers + at], e = s->noise[at];
    float to_mean = kl * (expected - shape), to_std = kl * (expected * std - 1 / std);
    if (standard) to_mean += 0.5f * pull, to_std += 0.5f * e * pull;
    else to_mean -= 0.5f * excess, to_std += 0.25f * std * excess + pull * (0.5f * e + 0.25f * std);
    to_std *= std;
    float *mean1 = s->mean1 + at, *mean2 = s->mean2 + at, *std1 = s->std1 + at, *std2 = s->std2 + at;
    const int64_t i = 0; /* of arrays of one number */
    ADABELIEF(to_mean, mean1, mean2, length, mean_step)
    ADABELIEF(to_std, std1, std2, length, std_step)
    s->mean[at] -= mean_step;
    s->log_std[at] -= std_step;
  }
}
