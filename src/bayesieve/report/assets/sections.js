// The sections of one run, from the headline to where it comes from.

// A section; on a phone it folds under its heading. Those in `folded` begin closed there.
function section(id, title, lead, ...children) {
  const node = el("section", { id, "aria-labelledby": id + "-title", "data-folded": FOLDED.includes(id) });
  const button = el("button", { type: "button", class: "fold", "aria-expanded": String(!FOLDED.includes(id)), onclick: () => fold(node, !node.hasAttribute("data-folded")) },
    unseen(`Show or hide: ${title}`));
  node.append(el("div", { class: "heading" }, el("h2", { id: id + "-title" }, title), button),
    el("div", { class: "content" }, lead ? el("p", { class: "lead" }, lead) : null, ...children));
  return node;
}

const FOLDED = ["left", "trust", "looks", "training", "provenance"];

function fold(node, closed) {
  node.toggleAttribute("data-folded", closed);
  node.querySelector(".fold").setAttribute("aria-expanded", String(!closed));
}

// How many times smaller a count became: exact, so no interval.
function fewer(before, after, words) {
  if (!before || !after || before === after) return null;
  const ratio = before / after;
  return ratio > 1 ? el("span", { class: "gain" }, `${number(ratio, 2)}× ${words[0]}`) : el("span", { class: "loss" }, `${number(1 / ratio, 2)}× ${words[1]}`);
}

function card(what, now, was, change, about) {
  return el("div", { class: "card", title: about || null }, el("div", { class: "what" }, words(what)), el("div", { class: "now" }, now),
    el("div", { class: "was" }, was), change ? el("div", { class: "change" }, change) : null);
}

// A measured difference: coloured only where its interval is without 0.
function measured(check, text) {
  if (!check || check.interval === null) return null;
  if (!check.beyond_chance) return el("span", { class: "chance" }, `${text}, not significant`);
  return el("span", { class: check.worse_by < 0 ? "gain" : "loss" }, text);
}

// How many more, or fewer, test examples are wrong.
function mistakes(n) {
  const size = Math.abs(n);
  return n ? `${count(size)} mistake${size === 1 ? "" : "s"} ${n < 0 ? "fewer" : "more"}` : "as many mistakes";
}

const MARKS = { pass: "✓", fail: "✗", "within chance": "≈", "not checked": "–" };

// The checks of the run: a question, the verdict in a word and a mark, and what was measured.
function verdictStrip(run) {
  return el("ul", { class: "verdicts", "aria-label": "Checks" }, run.checks.map((row) => el("li", {
    class: "verdict " + row.verdict.replace(" ", "-"), "data-check": row.name, "data-verdict": row.verdict,
  }, el("span", { class: "question" }, row.question),
  el("b", {}, el("span", { class: "mark", "aria-hidden": "true" }, MARKS[row.verdict]), row.verdict === "within chance" ? "undecided" : row.verdict),
  el("span", { class: "words" }, bound(row.words)))));
}

function heroSection(run) {
  const { before, after, way, predictor } = run.headline;
  const q = way === "sampled" ? run.headline.sampled : after.quality, b = before.quality;
  const check = Object.fromEntries(run.checks.map((row) => [row.name, row]));
  const whole = after.zeros === 0;
  const other = (text) => (b ? `${before.name}: ${text(b)}` : `${count(q.n_examples)} test examples`);
  const signs = (v, text) => (v < 0 ? "−" : "+") + text(Math.abs(v));
  const cards = [
    card("parameters", count(after.weights), whole ? "all of them" : `of ${count(before.parameters)}`, fewer(before.parameters, after.weights, ["fewer", "more"])),
    whole ? null : card("size of the weights", bytes(after.bytes ?? 4 * after.weights), `all weights: ${bytes(before.bytes)}`, fewer(before.bytes, after.bytes ?? 4 * after.weights, ["smaller", "larger"]), SIZE),
    whole ? null : card("multiply-adds", short(after.macs), `all weights: ${short(before.macs)}`, fewer(before.macs, after.macs, ["less", "more"])),
    timeCard(run),
    run.task === "regression"
      ? card("RMSE", number(q.rmse), other((item) => number(item.rmse)), measured(check.rmse, check.rmse.interval && `${signs(check.rmse.worse_by, (v) => percent(v, 1))}`))
      : card("test error", percent(q.error, 2), other((item) => percent(item.error, 2)), measured(check.error, b && mistakes(Math.round((q.error - b.error) * q.n_examples)))),
    run.task === "regression"
      ? card("90 % interval holds", percent(q.coverage_90, 1), other((item) => percent(item.coverage_90, 1)), null)
      : card("calibration error (ECE)", percent(q.ece, 2), other((item) => percent(item.ece, 2)), measured(check.ece, b && signs(q.ece - b.ece, (v) => (100 * v).toFixed(2) + " points"))),
  ];
  const [first, ...rest] = run.reading;
  return el("section", { class: "hero", id: "summary", "aria-labelledby": "summary-title" },
    el("p", { class: "kicker" }, `${run.name} · `, words(`${run.setup} · ${count(run.data.n_train)} training and ${count(run.data.n_test)} test examples`)),
    el("h1", { id: "summary-title" }, bound(run.title)), el("p", { class: "lead" }, bound(first)), verdictStrip(run),
    el("div", { class: "cards" }, cards.filter(Boolean)),
    el("p", { class: "caption under" }, `Error${run.task === "regression" ? " and intervals" : " and calibration"}: predictions of the ${predictor}. ${timeWords(run)}Intervals are of 95 %. This summary is of the network as it is and does not follow the slider.`),
    rest.length ? el("ul", { class: "plain claims" }, rest.map((text) => el("li", {}, words(bound(text))))) : null);
}

const SIZE = "Bytes of the kept weights and their places in model.safetensors of a bundle; graph, card and checksums of the bundle come on top.";

// Both networks in the same program: the runtime that skips zeros where it was measured, else torch.
function timeCard(run) {
  const { before, after, speedup } = run.headline;
  if (!speedup) return null;
  const key = speedup.where === "runtime" ? "runtime_ms" : "latency_ms";
  const verdict = run.checks.find((row) => row.name === "speed").verdict;
  const size = speedup.ratio >= 1 ? `${number(speedup.ratio, 2)}× faster` : `${number(1 / speedup.ratio, 2)}× slower`;
  const change = verdict === "within chance" ? el("span", { class: "chance" }, "about the same")
    : el("span", { class: verdict === "pass" ? "gain" : "loss" }, size);
  return card("time, 64 examples", milliseconds(after[key]["64"]), `all weights: ${milliseconds(before[key]["64"])}`, change);
}

function timeWords(run) {
  const { speedup } = run.headline;
  if (!speedup) return "";
  const where = speedup.where === "runtime" ? "bayesieve's runtime, which skips zeros where that is faster" : "torch";
  return `Time: both networks in ${where}, in turns on one processor core.${speedup.busy ? " The machine was busy." : ""} `;
}

// The ways to predict, one row each; a number is bold where it is significantly better than the headline's. Then answers without a network.
function waysPanel(run) {
  const { before, after, sampled, way, differences, baselines } = run.headline;
  const rows = [["before", before.name, before.quality], ["after", "mean weights", after.quality], ["sampled", sampled && `average of ${sampled.draws} draws`, sampled],
    ...baselines.map((item) => ["baseline", item.name, item])].filter(([, , item]) => item);
  if (rows.length < 2) return null;
  const keys = run.task === "regression"
    ? [["rmse", "RMSE", number], ["nll", "NLL, nats", number], ["coverage_90", "90 % interval holds", (v) => percent(v, 1)]]
    : [["error", "error", (v) => percent(v, 2)], ["nll", "NLL, nats", number], ["ece", "ECE", (v) => percent(v, 2)]];
  const cell = (key, name, value, format) => {
    if (value === undefined || value === null) return el("td", {}, "–");
    const gap = name === way ? null : (differences[name] || {})[key];
    const mark = !gap ? "" : gap.beyond_chance ? (gap.worse_by < 0 ? "best" : "") : "chance";
    const text = !gap ? null : gap.beyond_chance ? (gap.worse_by < 0 ? "better" : "worse") : "not significant";
    return el("td", { class: mark }, format(value), text ? el("small", {}, text) : null);
  };
  return panel({
    title: "Ways to predict", name: run.name + "-ways", wide: true,
    caption: `The headline is about the ${run.headline.predictor}. The others are compared with it on the same test examples; bold is better and gray is not significant (95 %). Below are answers that need no network.`,
    data: () => ({ header: ["", ...keys.map(([, text]) => text)], rows: rows.map(([, name, item]) => [name, ...keys.map(([key]) => item[key])]) }),
    body: scroll("Ways to predict", el("table", { class: "ways" },
      el("thead", {}, el("tr", {}, el("td", {}), keys.map(([, text]) => el("th", { scope: "col" }, words(text))))),
      el("tbody", {}, rows.map(([name, text, item]) => el("tr", { class: name }, el("th", { scope: "row" }, text), keys.map(([key, , format]) => cell(key, name, item[key], format))))))),
  });
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
    body: scroll("Layers", el("table", {},
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
  // Shares in percent, NLL in nats; roots of squares as they are, their difference in percent.
  const write = (c, plain) => (v) => (v === null ? "" : plain || c.name === "nll" ? number(v) : percent(v, 2));
  const cells = (c) => [...[c.dense, c.sieved].map(write(c, c.name.startsWith("rmse"))), ...[c.worse_by].map(write(c)), c.interval.map(write(c)).join(" to "), write(c)(c.tolerance), c.verdict];
  return panel({
    title: item.certified ? "Certified" : "Not certified", name: run.name + "-certificate", wide: true,
    caption: `By how much the sieved network is worse than ${item.against} on ${count(item.n_examples)} test examples, with ${percent(item.level, 0)} intervals. A check passes when its whole interval is within the tolerance, and is unsure when the tolerance is inside.`,
    data: () => ({
      header: ["check", "dense", "sieved", "worse by", "low", "high", "at most", "verdict"],
      rows: item.checks.map((c) => [c.name, c.dense, c.sieved, c.worse_by, ...c.interval, c.tolerance, c.verdict]),
    }),
    body: scroll("Certificate", el("table", {},
      el("thead", {}, el("tr", {}, ["check", "dense", "sieved", "worse by", "interval", "at most", "verdict"].map((t) => el("th", { scope: "col" }, t)))),
      el("tbody", {}, item.checks.map((c) => el("tr", {}, el("th", { scope: "row", title: c.note || "" }, c.name === "nll" ? "NLL, nats" : c.name === "ece" ? "ECE" : c.name), cells(c).map((t) => el("td", {}, t))))))),
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
    body: scroll("Confusion", el("table", { class: "heat" + (names.length > 4 && names.some((name) => name.length > 3) ? " long" : "") },
      el("thead", {}, el("tr", {}, el("td", {}), names.map((n) => el("th", { scope: "col" }, n)))),
      el("tbody", {}, matrix.map((row, i) => el("tr", {}, el("th", { scope: "row" }, names[i]), row.map((v, j) => cell(v, i, j))))))),
  });
}

function featurePanel(run) {
  if (!run.features) return null;
  const top = Math.max(...run.features.map((item) => item.slope), 1e-12);
  const row = (item) => [
    el("span", { class: item.reads === 0 ? "off" : "" }, item.name), track(item.slope / top),
    el("span", {}, item.reads === 0 ? "not read" : number(item.slope, 3) + (item.phi === null ? "" : ` · importance φ ${number(item.phi, 2)}`)),
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
      explained(key.replace(/_/g, " "), item.meanings[`${name}.${key}`]), el("dd", {}, words(typeof v === "number" && !Number.isInteger(v) ? number(v, 6) : Array.isArray(v) ? v.join(", ") : String(v))),
    ])));
  });
  const versions = [...Object.entries(item.versions), ["times of this page were taken on", item.timed_on]];
  const known = [...Object.entries(item.hashes), ...versions];
  const table = (title, rows) => scroll(title, el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, title), el("td", {}))),
    el("tbody", {}, rows.map(([a, b]) => el("tr", {}, el("th", { scope: "row" }, a), el("td", { class: "mono" }, b))))));
  return section("provenance", "Where it comes from", "Enough to make it again, and to know that it is the same.",
    el("div", { class: "grid" },
      panel({
        title: "Make it again", wide: true, caption: item.seconds ? `Training took ${number(item.seconds, 3)} s.` : null,
        body: item.command ? [el("pre", {}, el("code", { id: "command" }, item.command)), copyButton("Copy command", () => item.command, "copy-made")] : empty("The command was not written down."),
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

// A setting with its meaning under the pointer.
function explained(text, meaning) {
  return el("dt", {}, meaning ? el("abbr", { title: meaning }, text) : text);
}

const WORDS = [
  ["zeros", "parameters that are exactly 0, biases counted, as a share of all."],
  ["error", "share of test examples classified wrongly."],
  ["NLL", "negative log-likelihood of the true labels, in nats per example. Confident mistakes cost most."],
  ["ECE", "expected calibration error: the gap between confidence and accuracy, averaged over bins of confidence."],
  ["size of the weights", "bytes of the kept weights and their indices as a bundle stores them, after structured pruning. A bundle adds its graph, card and checksums."],
  ["multiply-adds", "of one example in the compacted network, zeros between kept weights included."],
  ["time", "processor time of 64 examples on one thread of the machine that made this page, median of 15 turns. Both networks run in bayesieve's runtime (`bayesieve.deliver.runtime.as_runtime`), which skips zeros where that is faster, or both in torch where the runtime cannot take them. Less than a tenth apart is about the same."],
  ["not significant", "the 95 % interval of a difference contains 0."],
  ["undecided", "the interval contains both no difference and more than the tolerance: more test examples would decide."],
  ["epistemic", "uncertainty about the weights: how much posterior samples disagree. More data reduce it, and so does a KL weight below 1."],
  ["aleatoric", "noise of the data: the uncertainty that posterior samples agree on. More data do not reduce it."],
  ["signal to noise", "size of a weight's mean over its standard deviation (`--score snr`)."],
  ["RMSE", "root mean squared error, in the unit of the target."],
  ["nats", "units of information, by natural logarithms: one nat is 1.44 bits."],
  ["kl", "KL weight (`--kl`); 1 is Bayes' rule, below 1 the posterior behaves as if there were more data."],
  ["snr", "signal to noise: size of a weight's mean over its standard deviation."],
  ["φ", "importance of an input: inclusion probabilities on the paths from it to the answer, 0 for the least and 1 for the most."],
  ["R̂", "agreement of chains, and of their halves: 1 is agreement, above 1.2 they have not mixed."],
  ["sbnn", "engine: variational inference with a spike-and-slab prior."], ["flat-vi", "engine: variational inference with a normal prior."],
  ["map", "engine: plain training of one weight vector."], ["bmr", "engine: Bayesian model reduction, which removes weights by their evidence."],
  ["horseshoe", "engine: variational inference with a horseshoe prior over units."], ["tdamp", "engine: message passing, which removes whole units."],
  ["sgld", "engine: a chain of draws by gradient steps with noise."], ["sghmc", "engine: a chain of draws by gradient steps with momentum and noise."],
  ["mlp", "network: fully connected layers; the numbers are its hidden units."],
  ["inclusion", "probability that a weight belongs to the wide part of its prior, that is, that it is needed."],
];

// Text whose known words tell their meaning under the pointer; each once.
function words(text) {
  const known = new Map(WORDS), parts = [];
  const pattern = new RegExp(`(^|[^\\p{L}-])(${[...known.keys()].filter((word) => !word.includes(" ") && word !== "error" && word !== "time" && word !== "zeros").join("|")})(?![\\p{L}-])`, "gu");
  let from = 0;
  for (const found of text.matchAll(pattern)) {
    const at = found.index + found[1].length, word = found[2];
    if (!known.has(word)) continue;
    parts.push(text.slice(from, at), el("abbr", { title: known.get(word) }, word));
    known.delete(word);
    from = at + word.length;
  }
  return [...parts, text.slice(from)];
}

function glossary() {
  return el("details", { id: "glossary" }, el("summary", {}, "What the words mean"),
    el("dl", {}, WORDS.flatMap(([word, text]) => [el("dt", {}, el("b", {}, word)), el("dd", { class: "caption" }, text)])));
}
