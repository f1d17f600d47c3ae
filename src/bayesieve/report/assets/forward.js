// The network in the page: a chain of sparse layers on one input, in double precision.
// docs/report.md describes the format. A weight is value * scale[row]; position `cut` of the
// slider keeps the weights whose level is above it.

function loadNetwork(json) {
  const steps = json.steps.map((step) => {
    const item = { ...step };
    if (step.op === "linear" || step.op === "conv") {
      for (const key of ["value", "scale", "bias", "level"]) item[key] = unpack(step[key]);
      item.index = placesOf(unpack(step.gaps));
    }
    if (step.op === "affine") {
      item.factor = unpack(step.factor);
      item.shift = unpack(step.shift);
      item.channels = step.factor.shape[1];
    }
    return item;
  });
  return { ...json, steps, size: json.input_shape.reduce((a, b) => a * b, 1) };
}

// Outputs of one input; member 0 has the mean weights, member i those of draw i.
function forward(network, input, member = 0, cut = 0) {
  let x = Float64Array.from(input);
  for (const step of network.steps) x = STEPS[step.op](step, x, member, cut);
  return x;
}

const STEPS = {
  linear(step, x, member, cut) {
    const { index, value, scale, bias, level, rows, columns } = step;
    const first = member * index.length;
    const y = Float64Array.from(bias.subarray(member * rows, (member + 1) * rows));
    for (let e = 0; e < index.length; e++) {
      if (level[e] <= cut) continue;
      const row = Math.floor(index[e] / columns);
      y[row] += value[first + e] * scale[member * rows + row] * x[index[e] - row * columns];
    }
    return y;
  },

  conv(step, x, member, cut) {
    const { index, value, scale, bias, level, rows, columns, kernel, source, stride, dilation } = step;
    const [, height, width] = source;
    const [inputs, high, wide] = kernel;
    const outHigh = Math.floor((height - dilation[0] * (high - 1) - 1) / stride[0]) + 1;
    const outWide = Math.floor((width - dilation[1] * (wide - 1) - 1) / stride[1]) + 1;
    const area = outHigh * outWide;
    const perGroup = rows / step.groups;
    const y = new Float64Array(rows * area);
    for (let o = 0; o < rows; o++) y.fill(bias[member * rows + o], o * area, (o + 1) * area);
    const first = member * index.length;
    for (let e = 0; e < index.length; e++) {
      if (level[e] <= cut) continue;
      const o = Math.floor(index[e] / columns);
      const place = index[e] - o * columns;
      const channel = Math.floor(place / (high * wide)) + Math.floor(o / perGroup) * inputs;
      const p = Math.floor(place / wide) % high;
      const q = place % wide;
      const w = value[first + e] * scale[member * rows + o];
      for (let r = 0; r < outHigh; r++) {
        let from = (channel * height + r * stride[0] + p * dilation[0]) * width + q * dilation[1];
        let to = o * area + r * outWide;
        for (let c = 0; c < outWide; c++, from += stride[1], to++) y[to] += w * x[from];
      }
    }
    return y;
  },

  pad(step, x) {
    const [channels, height, width] = step.source;
    const [left, right, top, bottom] = step.margins;
    const wide = width + left + right;
    const y = new Float64Array(channels * (height + top + bottom) * wide);
    for (let i = 0; i < channels; i++) {
      for (let r = 0; r < height; r++) {
        const from = (i * height + r) * width;
        y.set(x.subarray(from, from + width), (i * (height + top + bottom) + r + top) * wide + left);
      }
    }
    return y;
  },

  pool(step, x) {
    const [channels, height, width] = step.source;
    const { kernel, stride, padding, divisor } = step;
    const outHigh = Math.floor((height + 2 * padding[0] - kernel[0]) / stride[0]) + 1;
    const outWide = Math.floor((width + 2 * padding[1] - kernel[1]) / stride[1]) + 1;
    const largest = step.kind === "max";
    const y = new Float64Array(channels * outHigh * outWide);
    for (let i = 0, to = 0; i < channels; i++) {
      for (let row = 0; row < outHigh; row++) {
        for (let col = 0; col < outWide; col++, to++) {
          let found = largest ? -Infinity : 0;
          for (let p = 0; p < kernel[0]; p++) {
            const r = row * stride[0] + p - padding[0];
            if (r < 0 || r >= height) continue;
            for (let q = 0; q < kernel[1]; q++) {
              const c = col * stride[1] + q - padding[1];
              if (c < 0 || c >= width) continue;
              const v = x[(i * height + r) * width + c];
              found = largest ? Math.max(found, v) : found + v;
            }
          }
          y[to] = largest ? found : found / divisor;
        }
      }
    }
    return y;
  },

  activation(step, x) {
    return x.map(ACTIVATIONS[step.kind]);
  },

  affine(step, x, member) {
    const first = member * step.channels;
    return x.map((v, i) => {
      const channel = first + Math.floor(i / step.block);
      return v * step.factor[channel] + step.shift[channel];
    });
  },
};

const ACTIVATIONS = {
  ReLU: (v) => (v < 0 ? 0 : v), // NaN stays NaN, as in torch
  Tanh: Math.tanh,
  Sigmoid: (v) => 1 / (1 + Math.exp(-v)),
  SiLU: (v) => v / (1 + Math.exp(-v)),
};

function probabilities(outputs, kind) {
  if (kind === "bernoulli") {
    const yes = 1 / (1 + Math.exp(-outputs[0]));
    return [1 - yes, yes];
  }
  const top = outputs.reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = Array.from(outputs, (v) => Math.exp(v - top));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((v) => v / sum);
}

function entropy(probs) {
  return -probs.reduce((sum, p) => (p === 0 ? sum : sum + p * Math.log(p)), 0);
}

function average(rows) {
  return rows[0].map((_, i) => rows.reduce((sum, row) => sum + row[i], 0) / rows.length);
}

// Entropy that an average over few draws lacks, by the jackknife over draws or pairs of them.
function missingEntropy(draws, drawn) {
  const size = drawn === "pairs" ? 2 : 1;
  const units = [];
  for (let i = 0; i + size <= draws.length; i += size) units.push(average(draws.slice(i, i + size)));
  const n = units.length;
  if (drawn === "all" || n < 2) return 0;
  const mean = average(units);
  const without = units.map((unit) => entropy(mean.map((p, c) => Math.max(0, (n * p - unit[c]) / (n - 1)))));
  return Math.max(0, (n - 1) * (entropy(mean) - without.reduce((a, b) => a + b, 0) / n));
}

// Class probabilities of the mean weights and of every draw, and their uncertainty, in nats.
function classify(network, input, cut = 0) {
  const at = (member) => probabilities(forward(network, input, member, cut), network.output);
  const mean = at(0);
  const draws = Array.from({ length: network.n_draws }, (_, i) => at(i + 1));
  if (!draws.length) return { mean, draws, probs: mean, total: entropy(mean), epistemic: null };
  const probs = average(draws);
  const aleatoric = draws.reduce((sum, item) => sum + entropy(item), 0) / draws.length;
  const total = entropy(probs) + missingEntropy(draws, network.drawn);
  return { mean, draws, probs, total, epistemic: Math.max(0, total - aleatoric) };
}

// Standard deviation of the noise around an output; some networks put it out themselves.
function noiseOf(network, outputs, member) {
  if (network.output !== "heteroscedastic") return network.noise_std[member];
  const { std, least } = network.noise;
  return Math.sqrt(least ** 2 + std ** 2 * Math.exp(2 * outputs[outputs.length / 2]));
}

// Density of the noise up to a factor: Gaussian, or Student-t with df degrees of freedom.
function noiseShape(df, std) {
  if (df === null) return (v) => Math.exp(-0.5 * (v / std) ** 2);
  const scale = std * Math.sqrt((df - 2) / df);
  return (v) => (1 + (v / scale) ** 2 / df) ** (-(df + 1) / 2);
}

// Predictive mean and standard deviations of a regression, in standardised units.
function regress(network, input, cut = 0) {
  const all = Array.from({ length: network.n_draws + 1 }, (_, member) => forward(network, input, member, cut));
  const noise = all.map((outputs, member) => noiseOf(network, outputs, member));
  const [mean, ...draws] = all.map((outputs) => outputs[0]);
  if (!draws.length) return { mean, draws, center: mean, aleatoric: noise[0], epistemic: null };
  const center = draws.reduce((a, b) => a + b, 0) / draws.length;
  const spread = Math.sqrt(draws.reduce((sum, v) => sum + (v - center) ** 2, 0) / draws.length);
  const item = noise.slice(1);
  const aleatoric = Math.sqrt(item.reduce((sum, v) => sum + v * v, 0) / item.length);
  return { mean, draws, center, aleatoric, epistemic: spread };
}

// Largest difference to the answers torch gave when the page was made, on a few test examples.
function selfCheck(network) {
  const { inputs, expected, expected_drawn: drawn, tolerance } = network.check;
  const x = unpack(inputs);
  let worst = 0;
  expected.forEach((row, i) => {
    const input = x.subarray(i * network.size, (i + 1) * network.size);
    const real = network.noise_std !== null || network.noise !== null;
    const members = Array.from({ length: network.n_draws }, (_, m) => m + 1);
    const answer = (member) => {
      const outputs = forward(network, input, member);
      return real ? Array.from(outputs) : probabilities(outputs, network.output);
    };
    const compare = (found, wanted) => wanted.forEach((v, c) => {
      worst = Math.max(worst, Math.abs(v - found[c]));
    });
    compare(answer(0), row);
    if (drawn && i < drawn.length) compare(average(members.map(answer)), drawn[i]);
  });
  return { worst, ok: worst <= tolerance, n: expected.length };
}
