// The sections of one run, from the headline to where it comes from.

function section(id, title, lead, ...children) {
  return el("section", { id, "aria-labelledby": id + "-title" },
    el("h2", { id: id + "-title" }, title), lead ? el("p", { class: "lead" }, lead) : null, ...children);
}

function changeWords(before, after, { lower, unit }) {
  if (before === null || before === undefined || after === null || after === undefined || !before || !after) return null;
  const ratio = lower ? before / after : after / before;
  if (Math.abs(Math.log(ratio)) < 0.06) return el("span", {}, "about the same");
  const better = ratio > 1;
  const text = better ? `${number(ratio, 2)}× ${unit[0]}` : `${number(1 / ratio, 2)}× ${unit[1]}`;
  return el("span", { class: better ? "gain" : "loss" }, text);
}

function card(what, now, was, change) {
  return el("div", { class: "card" }, el("div", { class: "what" }, what), el("div", { class: "now" }, now),
    el("div", { class: "was" }, was), change ? el("div", { class: "change" }, change) : null);
}

function difference(before, after, format) {
  if (before === undefined || before === null) return null;
  const gap = after - before;
  if (Math.abs(gap) < 1e-12) return el("span", {}, "the same");
  return el("span", { class: gap < 0 ? "gain" : "loss" }, (gap < 0 ? "−" : "+") + format(Math.abs(gap)));
}

// How many more, or fewer, test examples are wrong.
function mistakes(n) {
  if (!n) return el("span", {}, "the same");
  const size = Math.abs(n);
  return el("span", { class: n < 0 ? "gain" : "loss" }, `${count(size)} example${size === 1 ? "" : "s"} ${n < 0 ? "fewer" : "more"}`);
}

function heroSection(run) {
  const { before, after, sampled } = run.headline;
  const q = after.quality, b = before.quality;
  const regression = run.task === "regression";
  const points = (v) => (100 * v).toFixed(2) + " points";
  const cards = [
    card("size", bytes(after.bytes ?? 4 * after.weights), `all weights: ${bytes(before.bytes)}`, changeWords(before.bytes, after.bytes ?? 4 * after.weights, { lower: true, unit: ["smaller", "larger"] })),
    card("multiply-adds", short(after.macs), `all weights: ${short(before.macs)}`, changeWords(before.macs, after.macs, { lower: true, unit: ["less", "more"] })),
    timeCard(before, after),
    regression
      ? card("RMSE", number(q.rmse), b ? `${before.name}: ${number(b.rmse)}` : `${count(q.n_examples)} test examples`, b ? difference(b.rmse, q.rmse, (v) => number(v, 2)) : null)
      : card("test error", percent(q.error, 2), b ? `${before.name}: ${percent(b.error, 2)}` : `${count(q.n_examples)} test examples`, b ? mistakes(Math.round((q.error - b.error) * q.n_examples)) : null),
    regression
      ? card("90 % interval holds", percent((sampled || q).coverage_90, 1), b ? `${before.name}: ${percent(b.coverage_90, 1)}` : "of the test targets", null)
      : card("calibration error (ECE)", percent(q.ece, 2), b ? `${before.name}: ${percent(b.ece, 2)}` : sampled ? `averaged over draws: ${percent(sampled.ece, 2)}` : "", b ? difference(b.ece, q.ece, points) : null),
  ];
  return el("section", { class: "hero", id: "summary" },
    el("p", { class: "kicker" }, `${run.name} · ${count(run.data.n_train)} training and ${count(run.data.n_test)} test examples`),
    el("h1", {}, run.title), el("p", { class: "lead" }, reading(run)), el("div", { class: "cards" }, cards),
    after.latency_ms ? el("p", { class: "caption under" }, after.runtime_ms
      ? "Time: both networks in bayesieve's runtime, which skips zeros where that is faster, on one processor core."
      : "Time: both networks in torch, on one processor core.") : null);
}

// In the runtime that skips zeros where that was measured, else in torch; both networks the same way.
function timeCard(before, after) {
  const [was, now] = after.runtime_ms ? [before.runtime_ms, after.runtime_ms] : [before.latency_ms, after.latency_ms];
  if (!now) return null;
  return card("time, 64 examples", milliseconds(now["64"]), `all weights: ${milliseconds(was["64"])}`,
    changeWords(was["64"], now["64"], { lower: true, unit: ["faster", "slower"] }));
}

// The error that the choice of draws leaves in the NLL, in words; a sampler's draws are all there are.
function drawError(sampled) {
  if (sampled.nll_mc_error === undefined || sampled.nll_mc_error === null) return "";
  return ` and an NLL of ${number(sampled.nll)} ± ${number(sampled.nll_mc_error, 2)} nats (standard error of the draws)`;
}

// The headline in words.
function reading(run) {
  const { before, after, sampled } = run.headline;
  const q = after.quality, b = before.quality;
  const regression = run.task === "regression";
  const value = (item) => (regression ? `an RMSE of ${number(item.rmse)}` : `${percent(item.error, 2)} error`);
  const parts = [];
  if (after.zeros > 0) {
    parts.push(`${percent(after.zeros)} of the ${count(before.parameters)} parameters are gone; ${count(after.weights)} are left.`);
  } else parts.push(`All ${count(before.parameters)} parameters are in use: nothing has been pruned yet.`);
  parts.push(`On ${count(q.n_examples)} test examples the network has ${value(q)}` + (b ? `; ${before.name}: ${value(b)}.` : "."));
  if (sampled && !regression) {
    parts.push(`Averaged over ${count(sampled.draws)} draws from the posterior it has ${percent(sampled.error, 2)} error${drawError(sampled)}, and it can tell doubt about its weights from noise in the data.`);
  }
  if (run.tempering) parts.push(run.tempering);
  return parts.join(" ");
}

function layerTable(run) {
  const report = run.compaction;
  if (!report) {
    return panel({ title: "Layers", wide: true, body: empty("This network could not be made smaller: " + (run.not_compacted || "it is too large to try at every position").replace(/\.$/, "") + ".") });
  }
  const arrow = ([a, b]) => (a === b ? count(b) : `${count(a)} → ${count(b)}`);
  const rows = report.layers.map((item) => el("tr", {}, el("th", { scope: "row" }, item.name), el("td", {}, item.kind),
    el("td", {}, arrow(item.units)), el("td", {}, arrow(item.inputs)), el("td", {}, arrow(item.parameters))));
  const reads = report.input_features === null ? report.n_inputs : report.input_features.length;
  return panel({
    title: "What was removed", name: run.name + "-layers",
    caption: report.parameters[0] === report.parameters[1]
      ? "Every unit still has a job, so no tensor becomes smaller. `bayesieve prune --keep-units` removes whole units."
      : `Units without a job are cut out for good: ${count(report.parameters[0])} parameters become ${count(report.parameters[1])} in smaller tensors, zeros among them, with the same answers (largest difference ${number(report.max_difference, 2)}).`
        + (reads < report.n_inputs ? ` It reads ${count(reads)} of ${count(report.n_inputs)} inputs.` : ""),
    data: () => ({
      header: ["layer", "kind", "units before", "units", "inputs before", "inputs", "parameters before", "parameters"],
      rows: report.layers.map((item) => [item.name, item.kind, ...item.units, ...item.inputs, ...item.parameters]),
    }),
    body: el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, ["layer", "kind", "units", "inputs", "parameters"].map((t) => el("th", { scope: "col" }, t)))), el("tbody", {}, rows))),
  });
}

function stayPanel(run) {
  const kept = (run.compaction || { kept: [] }).kept;
  const left = run.curve.points[0];
  const lines = kept.map((line) => el("li", {}, line));
  if (run.compaction) {
    const outputs = run.compaction.layers[run.compaction.layers.length - 1];
    const n = outputs.units[1];
    lines.push(el("li", {}, n === 1 ? `The output of ${outputs.name} stays: it is the answer.` : `The ${count(n)} outputs of ${outputs.name} stay: they are the answer.`));
    const scattered = left.macs && left.nonzero_macs < left.macs
      ? `${count(left.macs - left.nonzero_macs)} of the ${count(left.macs)} multiply-adds left are with zeros scattered over living units; a dense product still does them, a sparse one skips them.` : null;
    if (scattered) lines.push(el("li", {}, scattered));
  }
  return panel({
    title: "What could not be removed, and why",
    caption: kept.length ? null : "Nothing stood in the way: every unit without a job is gone.",
    body: lines.length ? el("ul", { class: "plain" }, lines) : empty(run.not_compacted || "Nothing to report."),
  });
}

function certificatePanel(run) {
  const item = run.certificate;
  if (!item) return null;
  const four = (v) => (v === null ? "" : v.toFixed(4));
  const cells = (c) => [four(c.dense), four(c.sieved), four(c.worse_by), `${four(c.interval[0])} to ${four(c.interval[1])}`, number(c.tolerance, 3), c.verdict];
  return panel({
    title: item.certified ? "Certified" : "Not certified", name: run.name + "-certificate", wide: true,
    caption: `By how much the sieved network is worse than ${item.against} on ${count(item.n_examples)} test examples, with ${percent(item.level, 0)} intervals. A check passes when its whole interval is within the tolerance, and is unsure when the tolerance is inside.`,
    data: () => ({
      header: ["check", "dense", "sieved", "worse by", "low", "high", "at most", "verdict"],
      rows: item.checks.map((c) => [c.name, c.dense, c.sieved, c.worse_by, ...c.interval, c.tolerance, c.verdict]),
    }),
    body: el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, ["check", "dense", "sieved", "worse by", "interval", "at most", "verdict"].map((t) => el("th", { scope: "col" }, t)))),
      el("tbody", {}, item.checks.map((c) => el("tr", {}, el("th", { scope: "row", title: c.note || "" }, c.name), cells(c).map((t) => el("td", {}, t))))))),
  });
}

function confusionPanel(run) {
  const matrix = run.confusion, names = run.data.classes;
  if (!matrix || matrix.length > 20) return null;
  const most = Math.max(1, ...matrix.flatMap((row, i) => row.filter((_, j) => i !== j)));
  const cell = (value, i, j) => {
    const node = el("td", { title: `${names[i]} taken for ${names[j]}: ${value}` }, value ? String(value) : "");
    const share = i === j ? 14 : value ? 18 + (60 * value) / most : 0;
    node.style.background = `color-mix(in srgb, var(--${i === j ? "blue" : "vermilion"}) ${share.toFixed(0)}%, transparent)`;
    return node;
  };
  return panel({
    title: "Confusion", name: run.name + "-confusion", caption: "Rows are true classes, columns what the network says.",
    data: () => ({ header: ["true", ...names], rows: matrix.map((row, i) => [names[i], ...row]) }),
    body: el("div", { class: "scroll" }, el("table", { class: "heat" + (names.length > 4 && names.some((name) => name.length > 3) ? " long" : "") },
      el("thead", {}, el("tr", {}, el("th", {}), names.map((n) => el("th", { scope: "col" }, n)))),
      el("tbody", {}, matrix.map((row, i) => el("tr", {}, el("th", { scope: "row" }, names[i]), row.map((v, j) => cell(v, i, j))))))),
  });
}

function featurePanel(run) {
  if (!run.features) return null;
  const top = Math.max(...run.features.map((item) => item.slope), 1e-12);
  const row = (item) => [
    el("span", { class: item.reads === 0 ? "off" : "" }, item.name), track(item.slope / top),
    el("span", {}, item.reads === 0 ? "not read" : number(item.slope, 3) + (item.phi === null ? "" : ` · φ ${number(item.phi, 2)}`)),
  ];
  const first = run.features.slice(0, 20), rest = run.features.slice(20);
  return panel({
    title: "Columns that matter", name: run.name + "-features", wide: true,
    caption: "How steeply the answer changes with each column, in units of its spread: mean absolute slope over test examples. A column that no kept weight reads is out of the model. φ, where the posterior has it, compares the inclusion probabilities on the paths from each column to the answer: 0 for the column with the least, 1 for the one with the most.",
    data: () => ({ header: ["feature", "slope", "weights reading it", "phi"], rows: run.features.map((item) => [item.name, item.slope, item.reads, item.phi]) }),
    body: [
      el("div", { class: "rank" }, first.flatMap(row)),
      rest.length ? el("details", {}, el("summary", {}, `${rest.length} more`), el("div", { class: "rank" }, rest.flatMap(row))) : null,
    ],
  });
}

function provenanceSection(run) {
  const item = run.provenance;
  const settings = Object.entries(item.config).filter(([, values]) => values && typeof values === "object").map(([name, values]) => {
    const rows = Object.entries(values).filter(([, v]) => v !== null && !(Array.isArray(v) && !v.length));
    if (!rows.length) return null;
    return el("div", {}, el("h3", {}, name), el("dl", {}, rows.flatMap(([key, v]) => [
      el("dt", {}, key.replace(/_/g, " ")), el("dd", {}, typeof v === "number" && !Number.isInteger(v) ? number(v, 6) : Array.isArray(v) ? v.join(", ") : String(v)),
    ])));
  });
  const versions = [...Object.entries(item.versions), ["times of this page were taken on", item.timed_on]];
  const known = [...Object.entries(item.hashes), ...versions];
  const table = (title, rows) => el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, title), el("th", {}))),
    el("tbody", {}, rows.map(([a, b]) => el("tr", {}, el("th", { scope: "row" }, a), el("td", { class: "mono" }, b))))));
  return section("provenance", "Where it comes from", "Enough to make it again, and to know that it is the same.",
    el("div", { class: "grid" },
      panel({
        title: "Make it again", wide: true, caption: item.seconds ? `Training took ${number(item.seconds, 3)} s.` : null,
        body: item.command ? el("pre", {}, el("code", { id: "command" }, item.command)) : empty("The command was not written down."),
      }),
      panel({ title: "Resolved settings", wide: true, body: el("div", { class: "settings" }, settings) }),
      panel({
        title: "Files and versions", wide: true, name: run.name + "-hashes",
        data: () => ({ header: ["what", "value"], rows: known }),
        body: [
          Object.keys(item.hashes).length ? table("SHA-256", Object.entries(item.hashes)) : empty("The run is not in a folder: no files to hash."),
          table("version", versions),
        ],
      })));
}

const WORDS = [
  ["zeros", "parameters that are exactly 0, biases counted, as a share of all."],
  ["error", "share of test examples classified wrongly."],
  ["NLL", "negative log-likelihood: how surprised the network is by the truth, in nats per example. Confident mistakes cost most."],
  ["ECE", "expected calibration error: the gap between confidence and accuracy, averaged over bins of confidence."],
  ["size", "bytes of the kept weights as a bundle stores them, after whole units were cut out."],
  ["multiply-adds", "of one example in the compacted network, zeros between kept weights included."],
  ["time", "processor time on one thread of the machine that made this page. Torch multiplies zeros too; the runtime (`bayesieve.deliver.runtime.as_runtime`) skips them where that is faster. The headline compares both networks in the runtime, the slider tells torch's time."],
  ["epistemic", "doubt about the weights: how much the draws of the posterior disagree. More data can reduce it. A prior weighed less than 1 makes it smaller, as more data would."],
  ["aleatoric", "noise of the data: what the draws agree is uncertain. More data cannot reduce it."],
  ["snr", "size of a weight's mean over its standard deviation."],
  ["inclusion", "probability that a weight belongs to the wide part of its prior, that is, that it is needed."],
];

function glossary() {
  return el("details", { id: "glossary" }, el("summary", {}, "What the words mean"),
    el("dl", {}, WORDS.flatMap(([word, text]) => [el("dt", {}, el("b", {}, word)), el("dd", { class: "caption" }, text)])));
}
