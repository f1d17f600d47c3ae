/* Mean-field posteriors: draws of all weights, and one Adam step.
 *
 * Plain loops over arrays, written so that compilers turn them into vector instructions. Each has a
 * twin in Python that it is tested against: `draw_weights_`, `turn_` and `counter_normals` in
 * core/noise.py, `move_` in engines/variational.py and in engines/scaled.py.
 */
#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
static inline float float_of(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }

/* e^x to 2 units in the last place; 0 below -87, and no more than e^88 */
static inline float exp_(float x) {
  x = x < -87.3f ? -87.3f : x > 88.0f ? 88.0f : x;
  const float k = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* rounds to a whole number */
  const float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1;
  return float_of(bits_of(p) + ((uint32_t)(int32_t)k << 23));
}

/* log x of a positive normal number */
static inline float log_(float x) {
  const uint32_t bits = bits_of(x) - 0x3f3504f3; /* sqrt(1/2): the fraction ends up around 1 */
  const float k = (float)((int32_t)bits >> 23);
  const float f = float_of((bits & 0x007fffff) + 0x3f3504f3) - 1;
  const float z = f * f;
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  return (p * f * z - k * 2.12194440e-4f - 0.5f * z) + f + k * 0.693359375f;
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
  const uint32_t quarter = (c + 0x20000000U) >> 30;             /* nearest quarter turn */
  const float t = (float)(int32_t)(c - (quarter << 30)) * 1.4629180792671596e-9f; /* pi/2 / 2^30 */
  const float z = t * t;
  const float sine = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * t + t;
  const float cosine = ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z
                        + 4.166664568298827e-2f) * z * z - 0.5f * z + 1;
  const float x = quarter & 1 ? sine : cosine, y = quarter & 1 ? cosine : sine;
  const float cos_sign = (quarter + 1) & 2 ? -radius : radius, sin_sign = quarter & 2 ? -radius : radius;
  *first = cos_sign * x;
  *second = sin_sign * y;
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
    for (int64_t i = 0; i < n - half; i++) {
      normals((uint32_t)(row * half + i), key, &a, &b);
      w[i] = mean[i] + exp_(log_std[i]) * a;
      w2[i] = mean2[i] + exp_(log_std2[i]) * b;
    }
    if (n % 2) {
      normals((uint32_t)(row * half + half - 1), key, &a, &b);
      w[half - 1] = mean[half - 1] + exp_(log_std[half - 1]) * a;
    }
    for (int64_t i = n; i < d; i++) w[i] = mean[i];
    if (keep) {
      for (int64_t i = 0; i < d; i++) w[i] *= keep[i];
      keep += d;
    }
  }
}

/* turned = gradient (w - centre) of the first n of d weights, and w mirrored at its centre, mean keep */
void bayesieve_turn(int64_t k, int64_t n, int64_t d, const float *restrict mean,
                    const uint8_t *restrict keep, const float *restrict grad, float *restrict w,
                    float *restrict turned) {
  for (int64_t row = 0; row < k; row++, mean += d, grad += d, w += d, turned += n) {
    for (int64_t i = 0; i < n; i++) {
      const float shift = w[i] - mean[i];
      turned[i] = grad[i] * shift;
      w[i] = mean[i] - shift;
    }
    if (keep) {
      for (int64_t i = 0; i < n; i++) w[i] *= keep[i], turned[i] *= keep[i];
      keep += d;
    }
  }
}

typedef struct { int64_t start, stop, first, last; } run; /* entries of a tensor, and their groups */

/* the first n of d weights times the number of their group, (k, groups), and times keep */
void bayesieve_scale(int64_t k, int64_t d, int64_t n_runs, int64_t groups, const run *runs,
                     const float *restrict ratio, const uint8_t *restrict keep, float *restrict w) {
  for (int64_t row = 0; row < k; row++, ratio += groups, w += d) {
    for (const run *r = runs; r < runs + n_runs; r++) {
      const int64_t size = (r->stop - r->start) / (r->last - r->first);
      for (int64_t g = r->first, at = r->start; g < r->last; g++, at += size)
        for (int64_t i = at; i < at + size; i++) w[i] *= ratio[g];
    }
    if (keep) {
      for (int64_t i = 0; i < d; i++) w[i] *= keep[i];
      keep += d;
    }
  }
}

/* mean and std of the first n of d weights, apart; std 0 of the others */
void bayesieve_spread(int64_t k, int64_t n, int64_t d, const float *restrict mean,
                      const float *restrict log_std, float *restrict w, float *restrict std) {
  memcpy(w, mean, k * d * sizeof(float));
  for (int64_t row = 0; row < k; row++, log_std += n, std += d) {
    for (int64_t i = 0; i < n; i++) std[i] = exp_(log_std[i]);
    for (int64_t i = n; i < d; i++) std[i] = 0;
  }
}

static void perturb(int64_t n, const float *restrict mean, const float *restrict variance,
                    const float *restrict noise, float *restrict out, float *restrict slope) {
  for (int64_t i = 0; i < n; i++) {
    const float std = __builtin_sqrtf(variance[i] < 0 ? 0 : variance[i]);
    out[i] = mean[i] + std * noise[i];
    slope[i] = std > 0 ? noise[i] / (2 * std) : 0;
  }
}

/* out = mean + sqrt(variance) e, and slope = e / (2 sqrt(variance)), 0 where there is no variance */
void bayesieve_perturb(int64_t n, const float *mean, const float *variance, const uint32_t *keys,
                       float *out, float *slope) {
  const int64_t half = (n + 1) / 2;
  const uint32_t key[3] = {keys[0], keys[1], keys[2]};
  float first[256], second[256];
  for (int64_t start = 0; start < half; start += 256) {
    const int64_t size = start + 256 < half ? 256 : half - start;
    const int64_t rest = start + half + size <= n ? size : size - 1; /* n may be odd */
    for (int64_t i = 0; i < size; i++) normals((uint32_t)(start + i), key, first + i, second + i);
    perturb(size, mean + start, variance + start, first, out + start, slope + start);
    perturb(rest, mean + half + start, variance + half + start, second, out + half + start,
            slope + half + start);
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

#define CHUNK 1024 /* weights at a time: their gradients stay in the cache */

static void adam(int64_t n, const float *restrict grad, const uint8_t *restrict trained,
                 float *restrict value, float *restrict first, float *restrict second, float length,
                 float factor) {
  for (int64_t i = 0; i < n; i++) {
    const float m = 0.9f * first[i] + 0.1f * grad[i];
    const float s = 0.999f * second[i] + 0.001f * grad[i] * grad[i];
    first[i] = m, second[i] = s;
    value[i] -= trained[i] * (length * m / (__builtin_sqrtf(s) * factor + 1e-8f));
  }
}

typedef struct {
  const float *w, *grad;          /* (k, d): a draw, and the gradient of the log-likelihood there */
  const float *std, *std_grad;    /* (k, d): with noise on activations, the same of std; or NULL */
  float *mean, *mean1, *mean2;    /* (k, d): with the moments of its gradient */
  float *log_std, *std1, *std2;   /* (k, n) */
  const uint8_t *keep, *trained;  /* (k, d): 0 or 1, or NULL */
  const float *turned;            /* (k, n): gradient (w - centre) of a first half, or NULL */
  const float *numbers;           /* (k, 6): log_odds, gap and slab of the prior, kl / N, and of
                                     Adam the length of a step and the factor of the second moment */
} posterior;

/* One Adam step of k posteriors on (KL - log-likelihood) / N; per is 1 / N. The prior's precision is
 * slab + gap sigmoid(-(log_odds + gap e / 2)) at e = mean^2 + std^2. */
void bayesieve_adam(const posterior *q, int64_t k, int64_t n, int64_t d, float per) {
  float to_mean[CHUNK], to_std[CHUNK];
  uint8_t ones[CHUNK];
  memset(ones, 1, CHUNK);
  for (int64_t row = 0; row < k; row++) {
    const float *numbers = q->numbers + 6 * row;
    const float odds = numbers[0], gap = numbers[1], slab = numbers[2], kl = numbers[3];
    for (int64_t start = 0, end; start < d; start = end) {
      end = start + CHUNK < d ? start + CHUNK : d;
      if (start < n && n < end) end = n; /* a chunk has only weights with a posterior, or none */
      const int64_t at = row * d + start, std_at = row * n + start, size = end - start;
      const float *restrict w = q->w + at, *restrict grad = q->grad + at;
      const float *restrict mean = q->mean + at;
      const uint8_t *restrict kept = q->keep ? q->keep + at : ones;
      const uint8_t *moves = q->trained ? q->trained + at : ones;
      if (end <= n) {
        const float *restrict log_std = q->log_std + std_at;
        for (int64_t i = 0; i < size; i++) {
          const float m = mean[i], s = exp_(log_std[i]), variance = s * s;
          const float kappa = slab + gap / (1 + exp_(odds + 0.5f * gap * (m * m + variance)));
          to_mean[i] = kl * m * kappa - per * grad[i];
          to_std[i] = kl * (variance * kappa - 1);
        }
        if (q->std) {
          const float *restrict std = q->std + at, *restrict std_grad = q->std_grad + at;
          for (int64_t i = 0; i < size; i++) to_std[i] -= per * std_grad[i] * std[i];
        } else {
          for (int64_t i = 0; i < size; i++) to_std[i] -= per * grad[i] * (w[i] - mean[i]) * kept[i];
        }
        if (q->turned) {
          const float *restrict turned = q->turned + std_at;
          for (int64_t i = 0; i < size; i++) to_std[i] -= 2 * per * turned[i];
        }
        adam(size, to_std, moves, q->log_std + std_at, q->std1 + std_at, q->std2 + std_at,
             numbers[4], numbers[5]);
      } else {
        for (int64_t i = 0; i < size; i++) to_mean[i] = -per * grad[i];
      }
      adam(size, to_mean, moves, q->mean + at, q->mean1 + at, q->mean2 + at, numbers[4], numbers[5]);
    }
  }
}

/* As `adam`; divides by the distance of a gradient from its forecast. */
static void adabelief(int64_t n, const float *restrict grad, const uint8_t *restrict trained,
                      float *restrict value, float *restrict first, float *restrict second,
                      float length, float factor) {
  for (int64_t i = 0; i < n; i++) {
    const float m = 0.9f * first[i] + 0.1f * grad[i], surprise = grad[i] - m;
    const float s = 0.999f * second[i] + 0.001f * surprise * surprise + 1e-16f;
    first[i] = m, second[i] = s;
    value[i] -= trained[i] * (length * m / (__builtin_sqrtf(s) * factor + 1e-16f));
  }
}

/* Gradients of (KL - log-likelihood) / N for mean / width and log std, and the terms of the sums. */
static void descents(int64_t n, const float *restrict mean, const float *restrict log_std,
                     const float *restrict grad, const float *restrict data,
                     const uint8_t *restrict kept, const uint8_t *restrict moves, float ratio,
                     float width, float kl, float per, float *restrict pulled,
                     float *restrict excess, float *restrict to_mean, float *restrict to_std) {
  const float precision = 1 / (width * width);
  for (int64_t i = 0; i < n; i++) {
    const float m = mean[i], s = exp_(log_std[i]), variance = s * s;
    const float to = kept[i] * grad[i] * ratio;
    pulled[i] = to * m + data[i];
    excess[i] = moves[i] * (1 - precision * (m * m + variance));
    to_mean[i] = (kl * precision * m - per * to) * width;
    to_std[i] = kl * (precision * variance - 1) - per * data[i];
  }
}

static float sum(int64_t n, const float *restrict values) {
  float lanes[16] = {0}, total = 0;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int64_t l = 0; l < 16; l++) lanes[l] += values[i + l];
  for (; i < n; i++) total += values[i];
  for (int64_t l = 0; l < 16; l++) total += lanes[l];
  return total;
}

typedef struct {
  posterior q;               /* its numbers are (k, 3): kl / N, and of AdaBelief the length of a step
                                and the factor of the second moment */
  const float *ratio, *width; /* (k, groups): of each group what w is multiplied by, and its prior's std */
  const run *runs;
  float *pulls;              /* (2, k, groups): sums for log ratio and log width */
} scaled;

/* One AdaBelief step of k posteriors w = ratio (mean + std e) on (KL - log-likelihood) / N. Weights
 * without a posterior, from n on, move in units of `point`. */
void bayesieve_adabelief(const scaled *p, int64_t k, int64_t n, int64_t d, int64_t n_runs,
                         int64_t groups, float per) {
  float data[CHUNK], to_mean[CHUNK], to_std[CHUNK], pulled[CHUNK], excess[CHUNK];
  const posterior *q = &p->q;
  uint8_t ones[CHUNK];
  memset(ones, 1, CHUNK);
  memset(p->pulls, 0, 2 * k * groups * sizeof(float));
  for (int64_t row = 0; row < k; row++) {
    const float kl = q->numbers[3 * row], length = q->numbers[3 * row + 1];
    const float factor = q->numbers[3 * row + 2], point = 0.1f;
    for (const run *r = p->runs; r < p->runs + n_runs; r++) {
      const int64_t each = (r->stop - r->start) / (r->last - r->first);
      for (int64_t g = r->first, group_end = r->start; g < r->last; g++) {
        const float ratio = p->ratio[row * groups + g], width = p->width[row * groups + g];
        int64_t start = group_end, end;
        group_end += each;
        for (; start < group_end; start = end) {
          end = start + CHUNK < group_end ? start + CHUNK : group_end;
          const int64_t at = row * d + start, std_at = row * n + start, size = end - start;
          const float *restrict w = q->w + at, *restrict grad = q->grad + at;
          const float *restrict mean = q->mean + at, *restrict log_std = q->log_std + std_at;
          const uint8_t *restrict kept = q->keep ? q->keep + at : ones;
          const uint8_t *restrict moves = q->trained ? q->trained + at : ones;
          if (q->std) { /* `data` is the gradient of the log-likelihood for log std */
            const float *restrict std = q->std + at, *restrict std_grad = q->std_grad + at;
            for (int64_t i = 0; i < size; i++) data[i] = std_grad[i] * std[i];
          } else {
            for (int64_t i = 0; i < size; i++) data[i] = kept[i] * grad[i] * (w[i] - ratio * mean[i]);
          }
          if (q->turned) {
            const float *restrict turned = q->turned + std_at;
            for (int64_t i = 0; i < size; i++) data[i] += 2 * turned[i];
          }
          descents(size, mean, log_std, grad, data, kept, moves, ratio, width, kl, per, pulled, excess,
                   to_mean, to_std);
          p->pulls[row * groups + g] += sum(size, pulled);
          p->pulls[(k + row) * groups + g] += sum(size, excess);
          adabelief(size, to_mean, moves, q->mean + at, q->mean1 + at, q->mean2 + at, length * width,
                    factor);
          adabelief(size, to_std, moves, q->log_std + std_at, q->std1 + std_at, q->std2 + std_at,
                    length, factor);
        }
      }
    }
    for (int64_t start = n, end; start < d; start = end) {
      end = start + CHUNK < d ? start + CHUNK : d;
      const int64_t at = row * d + start;
      for (int64_t i = 0; i < end - start; i++) to_mean[i] = -per * point * q->grad[at + i];
      adabelief(end - start, to_mean, q->trained ? q->trained + at : ones, q->mean + at,
                q->mean1 + at, q->mean2 + at, length * point, factor);
    }
  }
}
