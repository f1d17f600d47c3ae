/* Markov chains over the weights: one move, and one round of a prior's latent numbers.
 *
 * Compiled after steps.c, whose functions it uses. The twins in Python are `_langevin_` and
 * `_hamiltonian_` in engines/sgmcmc.py, and `follow_` in engines/sampling.py.
 */

typedef struct {
  const float *grad;              /* (k, d): of the log-likelihood */
  float *w, *velocity, *square;   /* (k, d); NULL without momentum, and without a metric */
  const float *laplace, *gauss;   /* (k, p): penalties of the first p of n weights with a prior */
  const uint8_t *trained;         /* (k, d): 0 or 1, or NULL */
  const uint32_t *keys;
  const float *numbers;           /* (k, 7): factors of laplace sign(w), gauss w and w in the pull of
                                     the prior on the first p, of w on the other n; the length of a
                                     step, the std of the noise, and momentum */
} chains;

enum { PENALISED, NORMAL, POINT }; /* entries up to p, up to n, and without a prior or noise */

/* At most CHUNK entries of one kind; `kind`, `moving` and `metric` are constants where this is called */
ALWAYS void advance(const chains *c, int64_t at, int64_t latent_at, int64_t size, const float *numbers,
                    float per, const float *restrict noise, const int kind, const int moving,
                    const int metric) {
  const float *restrict grad = c->grad + at;
  const float *restrict laplace = kind == PENALISED ? c->laplace + latent_at : 0;
  const float *restrict gauss = kind == PENALISED ? c->gauss + latent_at : 0;
  const uint8_t *restrict trained = c->trained ? c->trained + at : ones;
  float *restrict w = c->w + at, *restrict velocity = moving ? c->velocity + at : 0;
  float *restrict square = metric ? c->square + at : 0;
  const float of_laplace = numbers[0], of_gauss = numbers[1], decay = numbers[2];
  const float precision = numbers[3], length = numbers[4], std = numbers[5], momentum = numbers[6];
#pragma omp simd
  for (int64_t i = 0; i < size; i++) {
    const float x = w[i], sign = (float)((x > 0) - (x < 0));
    float g = grad[i], scale = 1, move;
    if (kind == PENALISED) g -= of_laplace * laplace[i] * sign + (of_gauss * gauss[i] + decay) * x;
    if (kind == NORMAL) g -= precision * x;
    if (metric) {
      const float each = g * per, mean = 0.99f * square[i] + 0.01f * each * each;
      square[i] = mean;
      scale = 1 / (__builtin_sqrtf(mean) + 1e-5f);
    }
    move = length * scale * g;
    if (kind != POINT) move += std * (metric ? __builtin_sqrtf(scale) : 1) * noise[i];
    if (moving) move += momentum * velocity[i];
    move *= trained[i];
    if (moving) velocity[i] = move;
    w[i] = x + move;
  }
}

/* The same with the constants put in */
ALWAYS void advance_of(const chains *c, int64_t at, int64_t latent_at, int64_t size,
                       const float *numbers, float per, const float *noise, const int kind) {
  if (c->velocity && c->square) advance(c, at, latent_at, size, numbers, per, noise, kind, 1, 1);
  else if (c->velocity) advance(c, at, latent_at, size, numbers, per, noise, kind, 1, 0);
  else if (c->square) advance(c, at, latent_at, size, numbers, per, noise, kind, 0, 1);
  else advance(c, at, latent_at, size, numbers, per, noise, kind, 0, 0);
}

/* Entries from start to stop of a row, at most CHUNK; noise begins with that of `start` */
static void advance_row(const chains *c, int64_t row, int64_t p, int64_t n, int64_t d, int64_t start,
                        int64_t stop, float per, const float *noise) {
  const float *numbers = c->numbers + 7 * row;
  for (int64_t end; start < stop; noise += end - start, start = end) {
    const int64_t at = row * d + start, latent_at = row * p + start;
    end = start < p ? p : start < n ? n : d;
    if (end > stop) end = stop;
    if (start < p) advance_of(c, at, latent_at, end - start, numbers, per, noise, PENALISED);
    else if (start < n) advance_of(c, at, latent_at, end - start, numbers, per, noise, NORMAL);
    else advance_of(c, at, latent_at, end - start, numbers, per, noise, POINT);
  }
}

/* One move of k chains; per is 1 / N */
void bayesieve_move_chains(const chains *c, int64_t k, int64_t p, int64_t n, int64_t d, float per) {
  const int64_t half = (n + 1) / 2; /* one normal of a pair is here, the other as far as `half` on */
  const uint32_t key[3] = {c->keys[0], c->keys[1], c->keys[2]};
  float first[CHUNK], second[CHUNK];
  for (int64_t row = 0; row < k; row++) {
    for (int64_t start = 0; start < half; start += CHUNK) {
      const int64_t size = start + CHUNK < half ? CHUNK : half - start;
      const int64_t stop = half + start + size < n ? half + start + size : n; /* n may be odd */
#pragma omp simd
      for (int64_t i = 0; i < size; i++)
        normals((uint32_t)(row * half + start + i), key, first + i, second + i);
      advance_row(c, row, p, n, d, start, start + size, per, first);
      advance_row(c, row, p, n, d, half + start, stop, per, second);
    }
    for (int64_t start = n; start < d; start += CHUNK)
      advance_row(c, row, p, n, d, start, start + CHUNK < d ? start + CHUNK : d, per, zeros);
  }
}

typedef struct {
  float *rho, *laplace, *gauss;   /* (k, p) */
  const float *w;                 /* (k, d) */
  const uint8_t *keep;            /* (k, d): 0 or 1, or NULL */
  const int64_t *sizes;           /* (layers): weights of each, p in all */
  const float *odds;              /* (k, layers): log-odds of rho at a weight of 0 */
  const float *numbers;           /* (k, 4): 1 / scale, 1 / spike scale, 1 / slab std, and omega */
  float *sums;                    /* (4, k, layers): over the weights kept, of rho, 1, laplace |w|
                                     and gauss w^2 */
} latents;

/* At most CHUNK weights of a layer; adds to its sums */
static void follow(const latents *l, int64_t at, int64_t latent_at, int64_t size, float start,
                   const float *numbers, double *sums) {
  float *restrict rho = l->rho + latent_at, *restrict laplace = l->laplace + latent_at;
  float *restrict gauss = l->gauss + latent_at;
  const float *restrict w = l->w + at;
  const uint8_t *restrict keep = l->keep ? l->keep + at : ones;
  const float over_scale = numbers[0], over_spike = numbers[1], over_slab = numbers[2];
  const float omega = numbers[3], rest = 1 - omega, over_square = over_slab * over_slab;
  float of_rho = 0, count = 0, of_laplace = 0, of_gauss = 0;
#pragma omp simd reduction(+ : of_rho, count, of_laplace, of_gauss)
  for (int64_t i = 0; i < size; i++) {
    const float x = w[i] * keep[i], absolute = float_of(bits_of(x) & 0x7fffffffU);
    const float scaled = absolute * over_scale, in_slabs = scaled * over_slab;
    const float odds = start + scaled * over_spike - 0.5f * in_slabs * in_slabs;
    const float r = rest * rho[i] + omega / (1 + exp_(-odds));
    const float narrow = rest * laplace[i] + omega * (1 - r) * over_spike;
    const float wide = rest * gauss[i] + omega * r * over_square;
    rho[i] = r, laplace[i] = narrow, gauss[i] = wide;
    of_rho += r * keep[i], count += keep[i];
    of_laplace += narrow * absolute, of_gauss += wide * x * x;
  }
  sums[0] += of_rho, sums[1] += count, sums[2] += of_laplace, sums[3] += of_gauss;
}

/* Eqs 12 and 13 of k chains: rho and both penalties move by omega towards what the weights say */
void bayesieve_follow(const latents *l, int64_t k, int64_t p, int64_t d, int64_t layers) {
  for (int64_t row = 0; row < k; row++) {
    const float *numbers = l->numbers + 4 * row;
    for (int64_t layer = 0, start = 0; layer < layers; layer++) {
      double sums[4] = {0, 0, 0, 0};
      for (const int64_t stop = start + l->sizes[layer]; start < stop;) {
        const int64_t size = start + CHUNK < stop ? CHUNK : stop - start;
        follow(l, row * d + start, row * p + start, size, l->odds[row * layers + layer], numbers, sums);
        start += size;
      }
      for (int i = 0; i < 4; i++) l->sums[(i * k + row) * layers + layer] = (float)sums[i];
    }
  }
}
