/* Noise on activations: the passes over the inputs and outputs of a layer. It is read after steps.c.
 *
 * Entries are (n, m, positions): n examples, m units or channels, and positions of an image, 1 for a
 * Linear layer. Products of variances may be in bfloat16. These functions read and write it, so that
 * no other pass converts it. Their twins in Python are `square`, `perturb`, `perturb_back` and `join`
 * in core/noise.py.
 */

/* x^2 of n numbers */
void bayesieve_square(int64_t n, const float *restrict x, bf16 *restrict square) {
  for (int64_t i = 0; i < n; i++) square[i] = shortened(x[i] * x[i]);
}

/* Variances from the entry `start` on as floats, with that of their unit's bias added */
static void widen(int64_t start, int64_t size, int64_t m, int64_t positions, const bf16 *restrict brief,
                  const float *restrict bias, float *restrict wide) {
  const int64_t run = positions > 1 ? positions : m; /* entries that follow each other in one loop */
  brief += start;
  for (int64_t i = 0, end; i < size; i = end) {
    const int64_t at = (start + i) % run, unit = (start + i) / positions % m;
    end = i + run - at < size ? i + run - at : size;
    if (!bias)
      for (int64_t j = i; j < end; j++) wide[j] = widened(brief[j]);
    else if (positions > 1)
      for (int64_t j = i; j < end; j++) wide[j] = widened(brief[j]) + bias[unit];
    else
      for (int64_t j = i; j < end; j++) wide[j] = widened(brief[j]) + bias[unit + j - i];
  }
}

static void perturb(int64_t n, const float *mean, const float *variance, const float *restrict noise,
                    float *out, float *slope) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float v = variance[i] > 0 ? variance[i] : 0, root = __builtin_sqrtf(v);
    out[i] = mean[i] + root * noise[i];
    slope[i] = v > 0 ? 0.5f * noise[i] / root : 0;
  }
}

/* out = mean + sqrt(variance) e, and slope = e / (2 sqrt(variance)), 0 where there is no variance;
 * out may be mean, and slope variance. Where variance is NULL, `brief` has it in bfloat16, and it
 * lacks the variance of the bias, (m), or NULL. */
void bayesieve_perturb(int64_t n, int64_t m, int64_t positions, const float *mean, const float *variance,
                       const bf16 *brief, const float *bias, const uint32_t *keys, float *out,
                       float *slope) {
  const int64_t all = n * m * positions, half = (all + 1) / 2;
  const uint32_t key[3] = {keys[0], keys[1], keys[2]};
  float first[CHUNK], second[CHUNK], wide[CHUNK];
  for (int64_t start = 0; start < half; start += CHUNK) {
    const int64_t size = start + CHUNK < half ? CHUNK : half - start;
#pragma omp simd
    for (int64_t i = 0; i < size; i++) normals((uint32_t)(start + i), key, first + i, second + i);
    for (int turn = 0; turn < 2; turn++) { /* one normal of a pair is here, the other `half` on */
      const int64_t at = start + turn * half, here = at + size <= all ? size : size - 1;
      if (!variance) widen(at, here, m, positions, brief, bias, wide);
      perturb(here, mean + at, variance ? variance + at : wide, turn ? second : first, out + at,
              slope + at);
    }
  }
}

/* Gradients of `bayesieve_perturb`: for_var = grad slope, in bfloat16 in `brief` where for_var is NULL,
 * and of both the sums over examples and positions, (m) */
void bayesieve_perturb_back(int64_t n, int64_t m, int64_t positions, const float *restrict grad,
                            const float *restrict slope, float *restrict for_var,
                            bf16 *restrict brief, float *restrict of_grad, float *restrict of_var) {
  memset(of_grad, 0, m * sizeof(float)), memset(of_var, 0, m * sizeof(float));
  if (positions == 1) {
    for (int64_t row = 0, at = 0; row < n; row++, at += m) {
      const float *restrict g = grad + at, *restrict s = slope + at;
      if (for_var)
        for (int64_t i = 0; i < m; i++) for_var[at + i] = g[i] * s[i];
      else
        for (int64_t i = 0; i < m; i++) brief[at + i] = shortened(g[i] * s[i]);
      for (int64_t i = 0; i < m; i++) of_grad[i] += g[i], of_var[i] += g[i] * s[i];
    }
    return;
  }
  for (int64_t at = 0, i = 0; i < n * m; i++, at += positions) {
    const float *restrict g = grad + at, *restrict s = slope + at;
    float all = 0, weighted = 0;
#pragma omp simd reduction(+ : all, weighted)
    for (int64_t j = 0; j < positions; j++) all += g[j], weighted += g[j] * s[j];
    of_grad[i % m] += all, of_var[i % m] += weighted;
    if (for_var)
      for (int64_t j = 0; j < positions; j++) for_var[at + j] = g[j] * s[j];
    else
      for (int64_t j = 0; j < positions; j++) brief[at + j] = shortened(g[j] * s[j]);
  }
}

/* Gradient of the inputs: total, that of the means, and added to it 2 x times that of x^2 */
void bayesieve_join(int64_t n, const float *restrict x, const bf16 *restrict of_square,
                    float *restrict total) {
  for (int64_t i = 0; i < n; i++) total[i] += 2 * x[i] * widened(of_square[i]);
}
