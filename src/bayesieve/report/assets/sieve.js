// The slider: one position moves the numbers, the layers, the picture of zeros and the network.

// Positions of the slider: 0 and above are this run, pruned further; below 0 are those of the network before, from dense on.
function wayOf(run) {
  const other = run.curve.before;
  return other ? other.points.slice(0, other.on_the_way) : [];
}

function pointAt(run, cut) {
  const way = wayOf(run);
  return cut < 0 ? way[way.length + cut] : run.curve.points[cut];
}

// What the parts of a run share: the position of the slider and who listens to it.
function makeView(run) {
  const view = { run, cut: 0, first: -wayOf(run).length, last: run.curve.points.length - 1, listeners: [], tried: null, changed: () => {} };
  view.listen = (react) => { view.listeners.push(react); react(view.cut); };
  view.set = (cut) => {
    view.cut = Math.max(view.first, Math.min(view.last, Math.round(cut)));
    view.listeners.forEach((react) => react(view.cut));
    view.changed();
  };
  return view;
}

// The last position whose error is not significantly above the reference; -1 if not even the first is.
function safeUntil(points) {
  const first = points.findIndex((p) => !p.safe);
  return (first < 0 ? points.length : first) - 1;
}

// The slider in a bar at the foot of the window, always in view, with a button that sieves while you watch. Its rail has the
// axis of the chart, so that the thumb is under the chart's marker.
function dock(run, view, axis) {
  const cuts = Array.from({ length: view.last - view.first + 1 }, (_, i) => view.first + i);
  const place = (share) => (Math.log(axis.low) - Math.log(share)) / (Math.log(axis.low) - Math.log(axis.high));
  const at = new Map(cuts.map((cut) => [cut, place(keptShare(pointAt(run, cut)))]));
  const words = el("span", { class: "words", id: "dock-words" });
  const range = el("input", {
    type: "range", id: "cut", min: view.first, max: view.last, step: 1, value: view.cut,
    "aria-label": "Threshold: how many weights to remove", oninput: () => view.set(Number(range.value)),
  });
  const thumb = el("span", { class: "thumb", "aria-hidden": "true" }), zone = el("span", { class: "zone", "aria-hidden": "true" });
  const rail = el("span", { class: "rail" }, zone, el("span", { class: "line", "aria-hidden": "true" }), range, thumb);
  let timer = 0;
  const stop = () => { clearInterval(timer); timer = 0; play.textContent = "▶ Sieve"; play.setAttribute("aria-pressed", "false"); };
  const play = el("button", { type: "button", class: "button", id: "play-sieve", "aria-pressed": "false", onclick: () => {
    if (timer) { stop(); return; }
    if (view.cut === view.last) view.set(view.first);
    play.textContent = "❚❚ Pause";
    play.setAttribute("aria-pressed", "true");
    timer = setInterval(() => { view.set(view.cut + 1); if (view.cut === view.last) stop(); }, 450);
  } }, "▶ Sieve");
  const follow = (event) => {
    const box = rail.getBoundingClientRect(), share = (event.clientX - box.left) / box.width;
    view.set(cuts.reduce((best, cut) => (Math.abs(at.get(cut) - share) < Math.abs(at.get(best) - share) ? cut : best)));
  };
  rail.addEventListener("pointerdown", (event) => {
    event.preventDefault(); // the browser's own thumb is elsewhere
    stop();
    rail.setPointerCapture(event.pointerId);
    range.focus({ preventScroll: true });
    follow(event);
  });
  rail.addEventListener("pointermove", (event) => { if (event.buttons) follow(event); });
  view.listen((cut) => {
    const p = pointAt(run, cut), chance = cut < 0 || p.safe ? "" : " · significantly worse";
    range.value = cut;
    range.setAttribute("aria-valuetext", `${percent(p.zeros)} zeros`);
    thumb.style.left = (100 * at.get(cut)).toFixed(2) + "%";
    words.textContent = bound(`${cut < 0 ? run.headline.before.name + ": " : ""}${percent(p.zeros)} zeros · ${showQuality(run, p[qualityKey(run)])} ${run.task === "regression" ? "RMSE" : "error"}${chance}`);
  });
  const safe = safeUntil(run.curve.points);
  if (safe >= 0) {
    zone.style.left = (100 * at.get(0)).toFixed(2) + "%";
    zone.style.width = (100 * (at.get(safe) - at.get(0))).toFixed(2) + "%";
  }
  // Called with the place of the chart's axis in the window.
  view.align = (left, width) => { rail.style.left = left.toFixed(1) + "px"; rail.style.width = width.toFixed(1) + "px"; };
  return el("div", { class: "dock", role: "region", "aria-label": "Sieve" }, el("div", { class: "row" }, play, words), el("div", { class: "lane" }, rail));
}

function qualityKey(run) {
  return run.task === "regression" ? "rmse" : "error";
}

function showQuality(run, value) {
  return run.task === "regression" ? number(value) : percent(value, 2);
}

// Share of parameters that are kept, as the horizontal axis counts it.
function keptShare(point) {
  return Math.max(1 - point.zeros, 1e-9);
}

function curveAxes(runs) {
  const key = qualityKey(runs[0]);
  const alone = runs.length === 1;
  const points = runs.flatMap((run) => [...run.curve.points, ...(alone ? (run.curve.before || { points: [] }).points : [])]);
  const before = alone ? runs.map((run) => run.headline.before.quality).filter(Boolean) : [];
  const shares = points.map(keptShare);
  const values = [...points.map((p) => p[key]), ...before.map((item) => item[key])].filter((v) => v !== null);
  const positive = values.filter((v) => v > 0);
  const low = Math.min(...positive), high = Math.max(...values);
  const log = positive.length === values.length && high / low > 4;
  const top = Math.max(...shares, before.length ? 1 : 0);
  return {
    key,
    x: {
      low: top * 1.05, high: Math.min(...shares) * 0.95, log: true, label: "parameters kept",
      ticks: logTicks(Math.min(...shares), top).reverse(), format: (v) => number(100 * v, 2) + " %",
    },
    y: {
      low: log ? low * 0.9 : Math.max(0, low - 0.1 * (high - low || low)), high: high * 1.05, log,
      label: runs[0].task === "regression" ? "RMSE" : "test error",
      format: runs[0].task === "regression" ? undefined : (v) => number(100 * v, 2) + " %",
    },
  };
}

function curvePanel(run, view) {
  const points = run.curve.points;
  const { key, x, y } = curveAxes([run]);
  const before = run.headline.before.quality, other = run.curve.before;
  const way = wayOf(run);
  let moveTo = () => {};
  const item = { name: other ? "this run" : null, kind: "c0", dots: true, points: points.map((p) => [keptShare(p), p[key]]) };
  const chart = lines({
    series: other
      ? [{ name: `${run.headline.before.name}, pruned by ${scoreName(other.score)}`, kind: "c1", faint: true, dots: true, points: other.points.map((p) => [keptShare(p), p[key], 2]) }, item]
      : [item],
    x, y, label: "Error against sparsity", height: 300,
    marks: ({ root, group, px, py, box }) => {
      if (before) {
        const v = py(before[key]);
        group.append(
          shape("line", { x1: box.left, x2: box.right, y1: v, y2: v, stroke: "var(--vermilion)", "stroke-dasharray": "1.5 4", "stroke-width": 1.5 }),
          shape("text", { class: "halo", x: box.left + 6, y: v - 6, style: null }, `${run.headline.before.name}: ${showQuality(run, before[key])}`),
        );
      }
      // The safe zone: positions whose error is not significantly above the reference.
      if (safe >= 0) {
        const [from, to] = [px(keptShare(points[0])), px(keptShare(points[safe]))];
        group.prepend(shape("rect", { class: "safe", x: from - 6, width: to - from + 12, y: box.top, height: box.bottom - box.top }));
        group.append(shape("text", { class: "halo", x: from, y: box.top + 14 }, before ? `not significantly worse than ${run.headline.before.name}` : "not significantly worse than this network"));
      }
      const line = shape("line", { y1: box.top, y2: box.bottom, stroke: "var(--ink)", "stroke-width": 1 });
      const dot = shape("circle", { r: 7, fill: "var(--blue)", stroke: "var(--card)", "stroke-width": 2 });
      group.append(line, dot);
      moveTo = (cut) => {
        const p = pointAt(run, cut);
        dot.setAttribute("fill", cut < 0 ? "var(--vermilion)" : "var(--blue)");
        line.setAttribute("x1", px(keptShare(p)));
        line.setAttribute("x2", px(keptShare(p)));
        dot.setAttribute("cx", px(keptShare(p)));
        dot.setAttribute("cy", py(p[key]));
      };
      moveTo(view.cut);
      root.style.cursor = "pointer";
      const nearest = (event) => {
        const at = event.clientX - root.getBoundingClientRect().left;
        const gaps = [...way, ...points].map((p) => Math.abs(px(keptShare(p)) - at));
        view.set(view.first + gaps.indexOf(Math.min(...gaps)));
      };
      requestAnimationFrame(() => { // once it is in the page
        const left = root.getBoundingClientRect().left;
        if (root.isConnected) view.align(left + box.left, box.right - box.left);
      });
      root.addEventListener("pointerdown", (event) => { nearest(event); root.setPointerCapture(event.pointerId); });
      root.addEventListener("pointermove", (event) => { if (event.buttons) nearest(event); });
    },
  });
  const safe = safeUntil(points);
  const where = el("b", { id: "cut-threshold" }), whose = el("span", {});
  const readout = {};
  const list = el("dl", { class: "readout" });
  const names = run.task === "regression"
    ? [["zeros", "zeros"], ["weights", "parameters kept"], ["quality", "RMSE"], ["nll", "NLL, nats"], ["bytes", "size of the weights"], ["macs", "multiply-adds"]]
    : [["zeros", "zeros"], ["weights", "parameters kept"], ["quality", "test error"], ["nll", "NLL, nats"], ["ece", "ECE"], ["bytes", "size of the weights"], ["macs", "multiply-adds"]];
  for (const [id, text] of names) {
    readout[id] = el("dd", { id: "at-" + id });
    list.append(el("div", {}, el("dt", {}, words(text)), readout[id]));
  }
  const meters = layerMeters(run);
  const command = el("code", { id: "cut-command", title: `--score ${run.curve.score}: weights are ranked by ${scoreName(run.curve.score)}` }), purpose = el("span", {}), copy = copyButton("Copy command", () => command.textContent, "copy-command");
  view.listen((cut) => {
    const p = pointAt(run, cut);
    where.textContent = p.threshold === null || p.zeros === 0 ? "all weights kept" : `${scoreName(cut < 0 ? other.score : run.curve.score)} ≥ ${number(p.threshold, 3)}`;
    const holds = p.threshold === null || p.zeros === 0 ? "" : "weights with ";
    whose.textContent = cut < 0 ? `This position is ${run.headline.before.name}${p.zeros > 0 ? ", pruned" : ""}: ${holds && `it keeps ${holds}`}` : holds ? `This position keeps ${holds}` : "This position: ";
    const texts = {
      zeros: percent(p.zeros), weights: count(p.weights), quality: showQuality(run, p[qualityKey(run)]),
      nll: number(p.nll), ece: percent(p.ece, 2), bytes: bytes(p.bytes), macs: short(p.macs),
    };
    for (const id of Object.keys(readout)) readout[id].textContent = texts[id];
    announce(`${percent(p.zeros)} zeros, ${run.task === "regression" ? "RMSE" : "error"} ${texts.quality}`);
    [purpose.textContent, command.textContent] = commandAt(run, cut);
    command.hidden = copy.hidden = cut < 0;
    meters.update(cut);
    moveTo(cut);
  });
  view.dock = dock(run, view, x);
  const from = way.length ? `it goes from ${run.headline.before.name} over this run to the empty network.`
    : points[0].zeros > 0 ? "it goes from this run to the empty network (no dense network is known: name one with --before)."
      : "it goes from dense to the empty network.";
  const fields = ["zeros", "removed", "weights", "threshold", qualityKey(run), "nll", "ece", "bytes", "macs", "nonzero_macs"];
  return panel({
    title: "Error against sparsity", name: run.name + "-curve", wide: true,
    caption: `Weights are removed in one shot by ${scoreName(run.curve.score)}, weakest first, without more training`
      + (other ? ", and so are those of the network it is compared with." : ".") + " Move the slider at the foot of the window, or click the curve: " + from + " Every position up to the end of the shaded zone has an error within chance of " + (before ? `that of ${run.headline.before.name}.` : "that of this network."),
    data: () => ({
      header: [...fields, ...run.curve.layers.map((n) => "kept " + n)],
      rows: points.map((p) => [...fields.map((f) => p[f]), ...p.kept]),
    }),
    body: [
      chart,
      el("p", { class: "where" }, whose, where, "."),
      list,
      meters.node,
      run.provenance.folder ? el("p", { class: "command" }, purpose, command, " ", copy) : null,
    ],
  });
}

// What to type to get the network at a position of the slider: as it is, or cut further.
function commandAt(run, cut) {
  const folder = run.provenance.folder, point = pointAt(run, cut);
  if (cut < 0) return [`This is ${run.headline.before.name}, on the way to the run.`, ""];
  if (cut === 0 && point.zeros > 0) return ["To deliver this network: ", `bayesieve compact ${folder} --out ${folder}-small`];
  if (cut === 0) return ["To deliver this network: ", `bayesieve export ${folder} --to onnx --out model.onnx`];
  return ["To make this cut, and train what is left: ", `bayesieve prune ${folder} --zeros ${point.zeros.toFixed(4)} --score ${run.curve.score} --finetune 10 --out ${folder}-cut`];
}

// Kept units and weights of each layer at the position of the slider.
function layerMeters(run) {
  const units = new Map(((run.compaction || {}).layers || []).map((layer) => [layer.name, layer]));
  const rows = run.layers.map((layer, i) => {
    const name = layer.name.replace(/\.weight$/, "");
    const item = units.get(name);
    const unitCell = el("span", {}), weightCell = el("span", {});
    const unitTrack = track(0), weightTrack = track(0);
    const node = el("tr", {}, el("th", { scope: "row" }, name),
      el("td", {}, el("span", { class: "meter" }, unitCell, unitTrack)),
      el("td", {}, el("span", { class: "meter" }, weightCell, weightTrack)));
    const update = (cut) => {
      const point = pointAt(run, cut);
      const total = item ? item.units[0] : layer.shape[0];
      const kept = point.units && name in point.units ? point.units[name] : null;
      unitCell.textContent = kept === null ? "–" : `${count(kept)} of ${count(total)}`;
      unitTrack.firstChild.style.width = (kept === null ? 0 : (100 * kept) / total) + "%";
      weightCell.textContent = `${count(point.kept[i])} of ${count(layer.weights)}`;
      weightTrack.firstChild.style.width = (100 * point.kept[i]) / layer.weights + "%";
    };
    return { node, update };
  });
  const node = scroll("Weights kept in each layer", el("table", { id: "layer-meters" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "layer"), el("th", { scope: "col" }, "units kept"), el("th", { scope: "col" }, "weights kept"))),
    el("tbody", {}, rows.map((row) => row.node))));
  return { node, update: (cut) => rows.forEach((row) => row.update(cut)) };
}

// Every run as a dot: how wrong it is against how large.
function sizePanel(runs) {
  const key = qualityKey(runs[0]);
  const quality = (run) => (run.headline.way === "sampled" ? run.headline.sampled : run.headline.after.quality)[key];
  const size = (run) => run.headline.after.bytes ?? 4 * run.headline.after.weights;
  const sizes = runs.map(size), values = runs.map(quality);
  const high = Math.max(...values) * 1.1 || 1;
  return panel({
    title: "Error against size", name: "runs-size", wide: true, caption: "One dot per run. Lower left is better.",
    data: () => ({ header: ["run", "bytes", key], rows: runs.map((run) => [run.name, size(run), quality(run)]) }),
    body: lines({
      series: runs.map((run, i) => ({ name: run.name, kind: "c" + (i % 6), bare: true, dots: true, points: [[size(run), quality(run), 6]] })),
      label: "Error against size of all runs", height: 260,
      x: { low: Math.min(...sizes) * 0.7, high: Math.max(...sizes) * 1.4, log: true, label: "size of the weights", format: bytes },
      y: { low: 0, high, label: key === "rmse" ? "RMSE" : "test error", format: key === "rmse" ? undefined : (v) => number(100 * v, 2) + " %" },
    }),
  });
}

// All runs over the same axes.
function comparedCurves(runs) {
  const { key, x, y } = curveAxes(runs);
  const series = runs.map((run, i) => ({
    name: run.name, kind: "c" + (i % 6), dots: true, points: run.curve.points.map((p) => [keptShare(p), p[key]]),
  }));
  return panel({
    title: "Error against sparsity", name: "runs-curve", wide: true,
    caption: "Every run pruned further in one shot, without more training.",
    data: () => ({
      header: ["run", "zeros", "weights", key, "nll"],
      rows: runs.flatMap((run) => run.curve.points.map((p) => [run.name, p.zeros, p.weights, p[key], p.nll])),
    }),
    body: lines({ series, x, y, label: "Error against sparsity of all runs", height: 320 }),
  });
}
