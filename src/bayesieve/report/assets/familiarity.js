// Familiarity of an input, an OOD score: the share of held-out training examples at least as unfamiliar.
// The formulas and names are those of bayesieve/uncertainty/familiarity.py.

function loadFamiliarity(json) {
  if (!json) return null;
  const { shape, bands, ...packed } = json;
  return { shape, bands, ...Object.fromEntries(Object.entries(packed).map(([name, value]) => [name, unpack(value)])) };
}

// The lowest cosines of every channel of an image, and the energies of bands of finer ones; other inputs as they are.
function coarseView(known, z) {
  if (known.shape.length === 1) return { coarse: z, lengths: [] };
  const [channels, height, width] = known.shape, { rows, columns, bands } = known;
  const high = Math.min(8, height), wide = Math.min(8, width);
  const coarse = new Float64Array(channels * high * wide), energy = new Float64Array(height * width);
  for (let c = 0; c < channels; c++) {
    for (let i = 0; i < height; i++) {
      const line = new Float64Array(width);
      for (let h = 0; h < height; h++) for (let w = 0; w < width; w++) line[w] += rows[i * height + h] * z[(c * height + h) * width + w];
      for (let j = 0; j < width; j++) {
        let wave = 0;
        for (let w = 0; w < width; w++) wave += columns[j * width + w] * line[w];
        energy[i * width + j] += wave * wave;
        if (i < high && j < wide) coarse[(c * high + i) * wide + j] = wave;
      }
    }
  }
  const lengths = bands.map(([top, bottom, left, right]) => {
    let sum = 0;
    for (let i = top; i < bottom; i++) for (let j = left; j < right; j++) sum += energy[i * width + j];
    return sum;
  });
  return { coarse, lengths };
}

const squaredLength = (values) => values.reduce((sum, v) => sum + v * v, 0);

function strangeness(known, input) {
  const { mean, scale, axes, floor, shift, spread, centres, roots } = known;
  const z = Float64Array.from(input, (v, i) => Math.max(-1e6, Math.min(1e6, (v - mean[i]) / scale[scale.length > 1 ? i : 0])));
  const { coarse, lengths } = coarseView(known, z), m = coarse.length, q = axes.length / m;
  const kept = Array.from({ length: q }, (_, a) => coarse.reduce((sum, v, i) => sum + v * axes[a * m + i], 0));
  if (q < m) lengths.unshift(squaredLength(coarse.map((v, i) => v - kept.reduce((sum, w, a) => sum + w * axes[a * m + i], 0))));
  const feature = [...kept, ...lengths.map((v, i) => Math.log(v + floor[i]))].map((v, i) => (v - shift[i]) / spread[i]);
  const f = feature.length, cells = (f * (f + 1)) / 2;
  let nearest = Infinity;
  for (let k = 0; k * f < centres.length; k++) {
    const gap = new Float64Array(f); // (feature - centre) times the lower root
    for (let i = 0, at = k * cells; i < f; i++) {
      for (let j = 0; j <= i; j++, at++) gap[j] += (feature[i] - centres[k * f + i]) * roots[at];
    }
    nearest = Math.min(nearest, squaredLength(gap));
  }
  return Math.sqrt(nearest);
}

function familiarityOf(known, input) {
  const { knots, levels } = known, distance = strangeness(known, input);
  let share = 1;
  for (let i = 0; i + 1 < knots.length; i++) {
    const passed = (distance - knots[i]) / Math.max(knots[i + 1] - knots[i], 1e-12);
    share -= Math.max(0, Math.min(1, passed)) * (levels[i] - levels[i + 1]);
  }
  return share;
}

const UNUSUAL = 0.05, STRANGE = 0.01; // familiarity below which an input is unusual, and is not answered

// A bar from familiar to unlike everything, with the mark from which inputs are not answered.
function familiarityDial(share) {
  const strange = share < STRANGE, unlike = 1 - share;
  const mark = el("span", { class: "limit" });
  mark.style.left = 100 * (1 - STRANGE) + "%";
  const dial = track(unlike, strange ? "far" : "");
  dial.append(mark);
  const words = share < UNUSUAL ? `${strange ? "Unlike" : "Unusual: unlike"} ${percent(unlike, strange ? 1 : 0)} of the training data.` : `Familiar: ${percent(share, 0)} of the training data is at least as unusual.`;
  return el("div", { class: "dial" + (strange ? " strange" : ""), id: "familiarity", "data-share": share.toFixed(6) }, el("span", {}, words), dial);
}

// Share of the values whose evenly spaced quantiles are given that lie below x.
function shareBelow(quantiles, x) {
  return quantiles.filter((v) => v < x).length / quantiles.length;
}
