// Charts of one run; each takes a run of the report and returns a panel.

// Lines over common axes. series: [{name, points: [[x, y, radius]], kind, steps, dots, bare, faint, cross}]
function lines({ series, x, y, label, height, guide, marks }) {
  const names = series.filter((item) => item.name).map((item) => [item.name, item.kind, item.cross ? "cross" : item.bare && item.dots ? "dot" : "line"]);
  const holder = responsive((width) => {
    const item = axes({ width, height: height || Math.min(320, Math.max(220, 0.62 * width)), x, y, label });
    const { group, px, py } = item;
    if (guide) group.append(shape("path", { class: "guide", fill: "none", d: path(guide, px, py) }));
    for (const one of series) {
      const style = { fill: "none", stroke: "currentColor", "stroke-width": 2, "stroke-linejoin": "round" };
      const holder = shape("g", { class: one.kind });
      if (names.length > 1) style["stroke-dasharray"] = DASHES[one.kind];
      if (one.faint) style["stroke-opacity"] = 0.45;
      if (!one.bare) holder.append(shape("path", { ...style, d: path(one.points, px, py, one.steps) }));
      if (one.dots) {
        for (const [u, v, r] of one.points) {
          const dot = dotAt(px(u), py(v), r || 3, one.cross);
          dot.setAttribute("class", "dot");
          holder.append(dot);
        }
      }
      group.append(holder);
    }
    if (marks) marks(item);
    hoverValues(item, series, x, y);
    return item.root;
  });
  const box = el("div", {}, names.length > 1 ? legend(names) : null, holder);
  box.redraw = holder.redraw;
  return box;
}

// The numbers of the point nearest to the pointer, above the chart.
function hoverValues({ root, group, px, py, box }, series, x, y) {
  const points = series.flatMap((one) => one.points.map((p) => ({ one, p })));
  if (points.length < 2) return;
  const text = shape("text", { class: "halo hover", x: box.right, y: 12, "text-anchor": "end" });
  const ring = shape("circle", { r: 6, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5 });
  root.append(text);
  const show = (axis, v) => (axis.format ? axis.format(v) : number(v, 3));
  root.addEventListener("pointermove", (event) => {
    const frame = root.getBoundingClientRect();
    const [mx, my] = [event.clientX - frame.left, event.clientY - frame.top];
    const far = ({ p }) => Math.hypot(px(p[0]) - mx, 0.3 * (py(p[1]) - my));
    const { one, p } = points.reduce((best, item) => (far(item) < far(best) ? item : best));
    ring.setAttribute("cx", px(p[0]));
    ring.setAttribute("cy", py(p[1]));
    group.append(ring);
    text.textContent = `${series.length > 1 && one.name ? one.name + ": " : ""}${show(y, p[1])} at ${show(x, p[0])}`;
  });
  root.addEventListener("pointerleave", () => { text.textContent = ""; ring.remove(); });
}

// The score that ranks weights, in words.
function scoreName(score) {
  return { snr: "signal to noise", magnitude: "size", inclusion: "inclusion probability", evidence: "evidence", "second-moment": "mean square" }[score] || score;
}

const WAYS = { before: "c1", after: "c0", sampled: "c2" };

function wayName(run, way) {
  if (way === "before") return run.headline.before.name;
  return way === "after" ? "this model, mean weights" : "this model, averaged over draws";
}

function reliabilityPanel(run) {
  const ways = Object.entries(run.quality).filter(([, item]) => item.reliability);
  if (!ways.length) return intervalPanel(run);
  const shown = ways.map(([way, { reliability: r }]) => ({ way, ece: r.ece, groups: r.groups.map(([confidence, accuracy, n, low, high]) => ({ confidence, accuracy, n, low, high })) }));
  const series = shown.map(({ way, ece, groups }) => {
    const most = Math.max(...groups.map((item) => item.n));
    const points = groups.map((item) => [item.confidence, item.accuracy, 2 + 4 * Math.sqrt(item.n / most)]);
    return { name: `${wayName(run, way)}, ECE\u00a0${percent(ece, 1)}`, kind: WAYS[way], points, dots: true };
  });
  const bars = shown.flatMap(({ way, groups }) => groups.map((item) => [WAYS[way], item.confidence, item.low, item.high]));
  const whiskers = ({ group, px, py }) => bars.forEach(([kind, at, low, high]) => group.prepend(
    shape("line", { class: kind, x1: px(at), x2: px(at), y1: py(low), y2: py(high), stroke: "currentColor", "stroke-opacity": 0.4 })));
  // Nothing is sure by less than the fifth at which the axes begin, nor right less often.
  const low = Math.floor(5 * Math.min(...bars.flatMap(([, at, bottom]) => [at, bottom]))) / 5;
  const unit = { low, high: 1, format: (v) => Math.round(100 * v) + " %" };
  return panel({
    title: "Reliability", name: run.name + "-reliability",
    caption: "When it says it is this sure, how often is it right? On the thin dashed line, confidence is honest. Dots grow with the number of test examples; neighbouring bins with few are taken together. A whisker spans the accuracies that so few examples leave plausible (90 %).",
    data: () => ({
      header: ["way", "confidence", "accuracy", "count"],
      rows: ways.flatMap(([way, { reliability: r }]) => r.confidence.map((c, i) => [way, c, r.accuracy[i], r.count[i]])),
    }),
    body: lines({ series, guide: [[low, low], [1, 1]], x: { ...unit, label: "confidence" }, y: { ...unit, label: "accuracy" }, label: "Reliability diagram", marks: whiskers }),
  });
}

function intervalPanel(run) {
  const ways = Object.entries(run.quality).filter(([, item]) => item.intervals);
  const series = ways.map(([way, { intervals: item }]) => ({
    name: wayName(run, way), kind: WAYS[way], dots: true,
    points: item.level.map((level, i) => [level, item.coverage[i]]),
  }));
  const unit = { low: 0, high: 1, format: (v) => Math.round(100 * v) + " %" };
  return panel({
    title: "Honest intervals", name: run.name + "-intervals",
    caption: "How many test targets lie inside the central interval of each probability. On the thin dashed line, intervals are as wide as they should be; above it, wider.",
    data: () => ({
      header: ["way", "level", "coverage"],
      rows: ways.flatMap(([way, { intervals: item }]) => item.level.map((l, i) => [way, l, item.coverage[i]])),
    }),
    body: lines({ series, guide: [[0, 0], [1, 1]], x: { ...unit, label: "probability of the interval" }, y: { ...unit, label: "targets inside" }, label: "Coverage of intervals" }),
  });
}

function riskPanel(run) {
  const ways = Object.entries(run.quality);
  const series = ways.map(([way, { risk_coverage: item }]) => ({
    name: wayName(run, way), kind: WAYS[way], points: item.coverage.map((c, i) => [c, item.risk[i]]),
  }));
  const high = Math.max(1e-9, ...series.flatMap((item) => item.points.map((p) => p[1])));
  const real = run.task === "regression";
  return panel({
    title: "If it may refuse", name: run.name + "-risk-coverage",
    caption: (real ? "Mean absolute error" : "Error") + " among the most certain examples. A curve that stays low to the left means that uncertainty predicts mistakes.",
    data: () => ({
      header: ["way", "coverage", "risk"],
      rows: ways.flatMap(([way, { risk_coverage: item }]) => item.coverage.map((c, i) => [way, c, item.risk[i]])),
    }),
    body: lines({
      series, label: "Risk against coverage",
      x: { low: 0, high: 1, format: (v) => Math.round(100 * v) + " %", label: "share of examples answered" },
      y: { low: 0, high: high * 1.05, format: real ? undefined : (v) => number(100 * v, 2) + " %", label: real ? "mean absolute error" : "error" },
    }),
  });
}

function inclusionPanel(run) {
  const rows = run.layers.filter((item) => item.inclusion_cdf);
  const title = "Inclusion probabilities";
  if (!rows.length) {
    return panel({ title, body: empty("This engine gives weights no inclusion probability; they are ranked by " + scoreName(run.curve.score) + " instead.") });
  }
  const series = rows.map((item, i) => ({
    name: item.name, kind: "c" + (i % 6), steps: true,
    points: item.inclusion_cdf.map((v, k) => [k / 50, v]),
  }));
  const unit = { low: 0, high: 1, format: (v) => Math.round(100 * v) + " %" };
  return panel({
    title, name: run.name + "-inclusion",
    caption: "Share of each layer's weights with an inclusion probability of at most this. A curve that starts high: most weights are not called for. Removed weights count as 0.",
    data: () => ({
      header: ["layer", "inclusion", "share"],
      rows: rows.flatMap((item) => item.inclusion_cdf.map((v, k) => [item.name, k / 50, v])),
    }),
    body: lines({ series, label: "Distribution of inclusion probabilities per layer", x: { ...unit, label: "inclusion probability" }, y: { ...unit, label: "share of weights" } }),
  });
}

const HISTORY = {
  elbo: "evidence lower bound, nats", log_lik: "log-likelihood of the training data, nats",
  kl: "divergence from the prior, nats", zeros: "zeros", lr_scale: "learning rate, of its start",
  val_nll: "NLL on held-out data", val_error: "error on held-out data", val_log_lik: "log-likelihood of held-out data",
};
// Engines that follow the posterior density have no bound and no divergence.
const DENSITY = { elbo: "log-density of the posterior, up to a constant, nats", kl: "minus log-density of the prior, nats" };
const FOLLOWS_DENSITY = ["map", "sgld", "sghmc"];

function trainingPanels(run) {
  const table = run.training;
  if (!table || !table.epoch || table.epoch.length < 2) {
    return [panel({ title: "Training", body: empty("No course of training was recorded for this run.") })];
  }
  const skip = ["epoch", "step", "seconds"];
  return Object.keys(table).filter((key) => !skip.includes(key)).map((key) => {
    const points = table.epoch.map((e, i) => [e, table[key][i]]).filter(([, v]) => v !== null);
    const values = points.map((p) => p[1]);
    let low = Math.min(...values), high = Math.max(...values);
    if (low === high) return null;
    // The first epochs would press the rest flat: start where most of the course is.
    const sorted = [...values].sort((a, b) => a - b);
    const cut = sorted[Math.floor(sorted.length * 0.02)];
    const clipped = cut - low > 0.5 * (high - low);
    if (clipped) low = cut;
    const fraction = key === "zeros" || key.endsWith("error");
    if (fraction || key === "lr_scale") low = 0;
    const engine = (run.provenance.config.engine || {}).name;
    const title = (FOLLOWS_DENSITY.includes(engine) && DENSITY[key]) || HISTORY[key] || key.replace(/_/g, " ");
    return panel({
      title: title[0].toUpperCase() + title.slice(1), name: `${run.name}-training-${key}`,
      caption: clipped ? "The first epochs lie below the picture." : null,
      data: () => ({ header: ["epoch", key], rows: points }),
      body: lines({
        series: [{ kind: "c0", points: points.map(([e, v]) => [e, Math.max(v, low)]) }], height: 190, label: key + " per epoch",
        x: { low: points[0][0], high: points[points.length - 1][0], label: "epoch" },
        y: { low, high, label: fraction ? "share" : /nats/i.test(title) ? "nats" : /rate/.test(title) ? "factor" : "value", format: fraction ? (v) => number(100 * v, 3) + " %" : short },
      }),
    });
  }).filter(Boolean);
}

function chainPanel(run) {
  const item = run.chains;
  if (!item) return null;
  const worst = item.rhat[item.rhat.length - 1];
  const cdf = (values) => values.map((v, i) => [v, (i + 1) / values.length]);
  const line = (at) => ({ group, px, box }) => group.append(shape("line", { class: "guide", x1: px(at), x2: px(at), y1: box.top, y2: box.bottom }));
  const chart = (values, label, fromZero, marks) => lines({
    series: [{ kind: "c0", points: cdf(values), steps: true }], height: 200, label, marks,
    x: { low: fromZero ? 0 : Math.min(1, values[0]), high: values[values.length - 1] * 1.02, label },
    y: { low: 0, high: 1, format: (v) => Math.round(100 * v) + " %", label: "share of predictions" },
  });
  return panel({
    title: "Chains", name: run.name + "-chains", wide: true,
    caption: `${item.n_chains} ${item.n_chains === 1 ? "chain" : "chains"} of ${item.n_draws} kept draws, ${item.rhat.length} test predictions watched. R̂ compares chains (and halves of them): 1 is agreement; above 1.2, the dashed line, they have not mixed. ${percent(item.rhat.filter((v) => v > 1.2).length / item.rhat.length, 0)} of them lie above it, the worst at ${number(worst, 3)}. Effective draws say how many independent draws the kept ones are worth.`,
    data: () => ({ header: ["rhat", "effective draws"], rows: item.rhat.map((v, i) => [v, item.ess[i]]) }),
    body: el("div", { class: "grid" }, chart(item.rhat, "R̂", false, worst > 1.2 ? line(1.2) : null), chart(item.ess, "effective draws", true)),
  });
}

function fitPanel(run) {
  const way = run.quality.sampled ? "sampled" : "after";
  const fit = run.quality[way].fit;
  if (!fit) return null;
  const all = [...fit.target, ...fit.mean];
  const margin = 0.04 * (Math.max(...all) - Math.min(...all) || 1);
  const low = Math.min(...all) - margin, high = Math.max(...all) + margin;
  const unit = run.data.target ? run.data.target + ", " : "";
  const dots = { kind: "c0", bare: true, dots: true, points: fit.target.map((t, i) => [t, fit.mean[i], 2.5]) };
  return panel({
    title: "Predictions against targets", name: run.name + "-fit",
    caption: "Test examples; a line spans the central 90 % interval. On the dashed line, prediction and target agree.",
    data: () => ({ header: ["target", "mean", "std"], rows: fit.target.map((t, i) => [t, fit.mean[i], fit.std[i]]) }),
    body: lines({
      series: [dots], guide: [[low, low], [high, high]], label: "Predictions against targets",
      x: { low, high, label: unit + "target" }, y: { low, high, label: unit + "prediction" },
      marks: ({ group, px, py, box }) => fit.target.forEach((t, i) => {
        const inside = (v) => Math.max(box.top, Math.min(box.bottom, py(v)));
        const [a, b] = [fit.mean[i] - fit.factor_90 * fit.std[i], fit.mean[i] + fit.factor_90 * fit.std[i]];
        group.prepend(shape("line", { x1: px(t), x2: px(t), y1: inside(a), y2: inside(b), stroke: "var(--sky)", "stroke-opacity": 0.45 }));
      }),
    }),
  });
}

// Where test targets are in their predictive distributions: flat if these are right.
function rankPanel(run) {
  const way = run.headline.way, counts = run.quality[way].ranks;
  if (!counts) return null;
  const total = counts.reduce((a, b) => a + b, 0), even = 1 / counts.length;
  const [low, high] = run.quality[way].ranks_plausible;
  const bars = counts.map((n, i) => [(i + 0.5) / counts.length, n / total]);
  return panel({
    title: "Ranks of the targets (PIT)", name: run.name + "-ranks",
    caption: `Where each test target is in the distribution predicted for it. Flat is right; a valley says that the distributions are too narrow, a hill too wide, a slope that they are off to one side. Bars of a calibrated model are inside the shaded band in nine of ten cases. Predictions of the ${run.headline.predictor}.`,
    data: () => ({ header: ["from", "to", "targets"], rows: counts.map((n, i) => [i / counts.length, (i + 1) / counts.length, n]) }),
    body: lines({
      series: [{ kind: "c0", bare: true, points: bars }], label: "Histogram of ranks", height: 230,
      x: { low: 0, high: 1, label: "share of the predicted distribution below the target", format: (v) => Math.round(100 * v) + " %" },
      y: { low: 0, high: Math.max(high, ...bars.map((p) => p[1])) * 1.15, label: "share of targets", format: (v) => number(100 * v, 2) + " %" },
      marks: ({ group, px, py }) => {
        bars.forEach(([at, share]) => group.append(shape("rect", { x: px(at - even / 2) + 1.5, width: px(even) - px(0) - 3, y: py(share), height: py(0) - py(share), fill: "var(--bar)" })));
        group.prepend(shape("rect", { x: px(0), width: px(1) - px(0), y: py(high), height: py(low) - py(high), fill: "var(--orange)", opacity: 0.25 }));
        [low, high].forEach((v) => group.append(shape("line", { x1: px(0), x2: px(1), y1: py(v), y2: py(v), stroke: "var(--orange)" })));
        group.append(
          shape("line", { class: "guide", x1: px(0), x2: px(1), y1: py(even), y2: py(even) }));
      },
    }),
  });
}
