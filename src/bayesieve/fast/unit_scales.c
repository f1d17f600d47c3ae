/* Scales of units under a horseshoe: a draw of them, and one AdaBelief step.
 *
 * Compiled after steps.c, whose functions it uses. The twins in Python are `_factors` and
 * `_move_scales_` in engines/horseshoe.py, and `UnitScales` in core/posterior_horseshoe.py, whose
 * quadrature has NODES nodes in each direction. Equations are those of docs/theory/horseshoe.md.
 */
#define NODES 12
#define UNITS 64 /* at a time: they stay in the cache */
#define FAR 80.0f

typedef struct {
  float *mean, *mean1, *mean2;    /* (k, S), S = 2 units + 3 layers: means of the logs of a and b of
                                     each unit, then a, b and u of each layer; moments of gradients */
  float *log_std, *std1, *std2;   /* (k, S) */
  const float *noise;             /* (k, S): of the draw */
  const float *shape, *rate;      /* (k, S): of the Gamma priors */
  const float *slab, *common;     /* (layers): 0 in the last layer; 0 where the layer has no a and b */
  const float *nodes, *weights;   /* (NODES), (NODES, NODES) */
  const int64_t *ends;            /* (layers): where the units of a layer end */
  const float *numbers;           /* (k, 4): log of the prior's std, kl / N, and of AdaBelief the
                                     length of a step and the factor of the second moment */
  const float *pulls;             /* (2, k, units): as `scaled` has them; NULL in a draw */
  float *ratio, *width;           /* (k, units): results of a draw: r, and E[gamma] */
} unit_scales;

typedef struct { /* what the units of one layer of one row share */
  const float *mean, *log_std, *noise; /* of the row */
  int64_t units, layers, layer;
  float base;                     /* log of the prior's std */
  float slab, common, a_std, b_std, u_std;
  float slabs[NODES], slopes[NODES]; /* slab e^(log u) at the nodes, and its derivative for log u */
} shared;

typedef struct { /* of UNITS units: log E[gamma], its derivatives, and a draw */
  float log_width[UNITS];
  float by_mean[UNITS], by_std[UNITS];     /* for mean and std of log lambda^2 */
  float by_slab[UNITS], by_slab_std[UNITS]; /* for mean and std of log u */
  float spread[UNITS];                     /* std of log lambda^2 */
  float log_scale[UNITS], open[UNITS];     /* of the draw: log gamma, and d log gamma / d log u * -2 */
} quadrature;

static inline float clamp(float x) { return x < -FAR ? -FAR : x > FAR ? FAR : x; }

static shared shared_of(const unit_scales *s, int64_t row, int64_t units, int64_t layers, int64_t layer) {
  const int64_t at = row * (2 * units + 3 * layers), first = 2 * units + layer;
  shared l = {s->mean + at, s->log_std + at, s->noise + at, units, layers, layer, s->numbers[4 * row],
              s->slab[layer], s->common[layer], 0, 0, 0, {0}, {0}};
  l.a_std = exp_(l.log_std[first]), l.b_std = exp_(l.log_std[first + layers]);
  l.u_std = exp_(l.log_std[first + 2 * layers]);
  for (int j = 0; j < NODES; j++) {
    const float x = l.mean[first + 2 * layers] + l.u_std * s->nodes[j];
    l.slabs[j] = l.slab * exp_(clamp(x));
    l.slopes[j] = x == clamp(x) ? l.slabs[j] : 0;
  }
  return l;
}

/* Units start to start + n of a layer, n <= UNITS: E[gamma] as `UnitScales.log_expected_power` (gamma
 * is (1 / lambda^2 + u)^-1/2) with its derivatives, and log gamma at the draw */
static void quadrature_of(const unit_scales *s, const shared *l, int64_t start, int64_t n, quadrature *q) {
  const int64_t units = l->units, first = 2 * units + l->layer, layers = l->layers;
  const float *restrict a = l->mean + start, *restrict b = l->mean + units + start;
  const float *restrict log_a = l->log_std + start, *restrict log_b = l->log_std + units + start;
  const float *restrict noise_a = l->noise + start, *restrict noise_b = l->noise + units + start;
  const float *of_layer = l->mean + first, *noise = l->noise + first;
  const float local = l->slab, u = of_layer[2 * layers] + l->u_std * noise[2 * layers];
  const float centre = l->common * (of_layer[0] - of_layer[layers]) + 2 * l->slab * l->base;
  const float shift = l->common * (l->a_std * noise[0] - l->b_std * noise[layers]);
  const float variance = l->common * (l->a_std * l->a_std + l->b_std * l->b_std);
  float ratio[UNITS], inverse[UNITS], slope[UNITS], row[UNITS], total[UNITS] = {0};
  memset(q->by_mean, 0, sizeof q->by_mean), memset(q->by_std, 0, sizeof q->by_std);
  memset(q->by_slab, 0, sizeof q->by_slab), memset(q->by_slab_std, 0, sizeof q->by_slab_std);
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float a_std = exp_(log_a[i]), b_std = exp_(log_b[i]);
    ratio[i] = centre + local * (a[i] - b[i]);
    q->spread[i] = __builtin_sqrtf(variance + local * (a_std * a_std + b_std * b_std));
    const float drawn = ratio[i] + shift + local * (a_std * noise_a[i] - b_std * noise_b[i]);
    const float x = drawn + u, size = float_of(bits_of(x) & 0x7fffffffU), small = exp_(-size);
    const float softplus = (x > 0 ? x : 0) + log_(1 + small);
    q->log_scale[i] = 0.5f * (drawn - local * softplus);
    q->open[i] = local * (x > 0 ? 1 : small) / (1 + small);
  }
  for (int node = 0; node < NODES; node++) {
    const float place = s->nodes[node];
    memset(row, 0, sizeof row);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
      const float x = -(ratio[i] + q->spread[i] * place);
      inverse[i] = exp_(clamp(x));
      slope[i] = x == clamp(x) ? inverse[i] : 0;
    }
    for (int j = 0; j < NODES; j++) {
      const float weight = s->weights[node * NODES + j], slab = l->slabs[j], by_u = l->slopes[j];
      const float by_std = by_u * s->nodes[j];
#pragma omp simd
      for (int64_t i = 0; i < n; i++) {
        const float square = 1 / (inverse[i] + slab), value = weight * __builtin_sqrtf(square);
        total[i] += value, row[i] += value * (slope[i] * square); /* shares in [0, 1] of 1 / square */
        q->by_slab[i] -= value * (by_u * square), q->by_slab_std[i] -= value * (by_std * square);
      }
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
      q->by_mean[i] += row[i], q->by_std[i] += place * row[i];
    }
  }
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float half = 0.5f / total[i];
    q->log_width[i] = log_(total[i]);
    q->by_mean[i] *= half, q->by_std[i] *= half, q->by_slab[i] *= half, q->by_slab_std[i] *= half;
  }
}

/* r = gamma / E[gamma] of a draw, 1 where `held`, and E[gamma], of each unit */
void bayesieve_unit_factors(const unit_scales *s, int64_t k, int64_t units, int64_t layers, int held) {
  quadrature q;
  for (int64_t row = 0; row < k; row++) {
    for (int64_t layer = 0, start = 0; layer < layers; layer++) {
      const shared l = shared_of(s, row, units, layers, layer);
      for (int64_t n; start < s->ends[layer]; start += n) {
        n = s->ends[layer] - start < UNITS ? s->ends[layer] - start : UNITS;
        quadrature_of(s, &l, start, n, &q);
        float *ratio = s->ratio + row * units + start, *width = s->width + row * units + start;
        for (int64_t i = 0; i < n; i++) {
          width[i] = exp_(q.log_width[i]);
          ratio[i] = held ? 1 : exp_(q.log_scale[i] - q.log_width[i]);
        }
      }
    }
  }
}

/* AdaBelief for n logs from `at` on, given the gradients of the weights' part of the objective for
 * mean and log std; those of `active` KL[LogNormal || Gamma] are added */
static void move_logs(const unit_scales *s, int64_t at, int64_t n, const float *numbers, float active,
                      const float *restrict for_mean, const float *restrict for_std) {
  const float kl = active * numbers[1], length = numbers[2], factor = numbers[3];
  float *restrict mean = s->mean + at, *restrict mean1 = s->mean1 + at, *restrict mean2 = s->mean2 + at;
  float *restrict log_std = s->log_std + at, *restrict std1 = s->std1 + at, *restrict std2 = s->std2 + at;
  const float *restrict shape = s->shape + at, *restrict rate = s->rate + at;
  const uint8_t *restrict trained = ones;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float variance = exp_(2 * log_std[i]), expected = rate[i] * exp_(mean[i] + 0.5f * variance);
    const float to_mean = for_mean[i] + kl * (expected - shape[i]);
    const float to_std = for_std[i] + kl * (expected * variance - 1);
    ADABELIEF(to_mean, mean1, mean2, length, mean_step)
    ADABELIEF(to_std, std1, std2, length, std_step)
    mean[i] -= mean_step;
    log_std[i] -= std_step;
  }
}

/* One AdaBelief step of all scales on (KL - log-likelihood) / N; per is 1 / N */
void bayesieve_unit_scales(const unit_scales *s, int64_t k, int64_t units, int64_t layers, int held,
                           float per) {
  quadrature q;
  float for_a[UNITS], for_b[UNITS], for_a_std[UNITS], for_b_std[UNITS];
  for (int64_t row = 0; row < k; row++) {
    const int64_t at = row * (2 * units + 3 * layers);
    const float *numbers = s->numbers + 4 * row;
    for (int64_t layer = 0, start = 0; layer < layers; layer++) {
      const shared l = shared_of(s, row, units, layers, layer);
      const float local = l.slab;
      double ratio = 0, spread = 0, moved = 0, slab = 0, slab_std = 0, slab_moved = 0;
      for (int64_t n; start < s->ends[layer]; start += n) {
        n = s->ends[layer] - start < UNITS ? s->ends[layer] - start : UNITS;
        quadrature_of(s, &l, start, n, &q);
        const float *restrict pull = s->pulls + row * units + start, *restrict excess = pull + k * units;
        const float *restrict log_a = l.log_std + start, *restrict log_b = log_a + units;
        const float *restrict noise_a = l.noise + start, *restrict noise_b = noise_a + units;
        for (int64_t i = 0; i < n; i++) { /* gradients for log lambda^2 of centre and draw */
          const float drawn = held ? 0 : -per * pull[i], width = numbers[1] * excess[i] - drawn;
          const float to_draw = drawn * 0.5f * (1 - q.open[i]), to_u = -drawn * 0.5f * q.open[i];
          const float to_ratio = local * (width * q.by_mean[i] + to_draw);
          const float to_spread = width * q.by_std[i] / q.spread[i];
          const float a_std = exp_(log_a[i]), b_std = exp_(log_b[i]);
          for_a[i] = to_ratio, for_b[i] = -to_ratio;
          for_a_std[i] = local * a_std * (to_spread * a_std + to_draw * noise_a[i]);
          for_b_std[i] = local * b_std * (to_spread * b_std - to_draw * noise_b[i]);
          ratio += width * q.by_mean[i] + to_draw, spread += to_spread, moved += to_draw;
          slab += width * q.by_slab[i] + to_u, slab_std += width * q.by_slab_std[i], slab_moved += to_u;
        }
        move_logs(s, at + start, n, numbers, local, for_a, for_a_std);
        move_logs(s, at + units + start, n, numbers, local, for_b, for_b_std);
      }
      const int64_t first = 2 * units + layer;
      const float *noise = l.noise + first;
      for_a[0] = l.common * (float)ratio, for_b[0] = -for_a[0];
      for_a_std[0] = l.common * l.a_std * (float)(spread * l.a_std + moved * noise[0]);
      for_b_std[0] = l.common * l.b_std * (float)(spread * l.b_std - moved * noise[layers]);
      move_logs(s, at + first, 1, numbers, l.common, for_a, for_a_std);
      move_logs(s, at + first + layers, 1, numbers, l.common, for_b, for_b_std);
      for_a[0] = (float)slab;
      for_a_std[0] = l.u_std * (float)(slab_std + slab_moved * noise[2 * layers]);
      move_logs(s, at + first + 2 * layers, 1, numbers, l.slab, for_a, for_a_std);
    }
  }
}
