// The slider: one position moves the numbers, the layers, the picture of zeros and the network.

// What the parts of a run share: the position of the slider and who listens to it.
function makeView(run) {
  const view = { run, cut: 0, listeners: [], tried: null, changed: () => {} };
  view.listen = (react) => { view.listeners.push(react); react(view.cut); };
  view.set = (cut) => {
    const last = run.curve.points.length - 1;
    view.cut = Math.max(0, Math.min(last, Math.round(cut)));
    view.listeners.forEach((react) => react(view.cut));
    view.changed();
  };
  return view;
}

// The last position up to which the error is within chance of the reference; -1 if not even the first is.
function safeUntil(points) {
  const first = points.findIndex((p) => !p.safe);
  return (first < 0 ? points.length : first) - 1;
}

// The slider in a bar at the foot of the window, always in view, with a button that sieves while you watch.
function dock(run, view, range) {
  const points = run.curve.points;
  const words = el("span", { class: "words", id: "dock-words" });
  let timer = 0;
  const stop = () => { clearInterval(timer); timer = 0; play.textContent = "▶ Sieve"; play.setAttribute("aria-pressed", "false"); };
  const play = el("button", { type: "button", class: "button", id: "play-sieve", "aria-pressed": "false", onclick: () => {
    if (timer) { stop(); return; }
    if (view.cut === points.length - 1) view.set(0);
    play.textContent = "❚❚ Pause";
    play.setAttribute("aria-pressed", "true");
    timer = setInterval(() => { view.set(view.cut + 1); if (view.cut === points.length - 1) stop(); }, 450);
  } }, "▶ Sieve");
  range.addEventListener("pointerdown", stop);
  view.listen((cut) => {
    const p = points[cut];
    words.textContent = bound(`${percent(p.zeros)} zeros · ${showQuality(run, p[qualityKey(run)])} ${run.task === "regression" ? "RMSE" : "error"}${p.safe ? "" : " · beyond chance"}`);
  });
  const last = points.length - 1, share = last > 0 ? (100 * Math.max(0, safeUntil(points))) / last : 0;
  const zone = el("span", { class: "zone", "aria-hidden": "true" });
  zone.style.width = share.toFixed(1) + "%";
  return el("div", { class: "dock", role: "region", "aria-label": "Sieve" }, el("div", { class: "row" }, play, el("span", { class: "rail" }, zone, range), words));
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
      // The safe zone: positions whose error is within chance of the reference.
      if (safe >= 0) {
        const [from, to] = [px(keptShare(points[0])), px(keptShare(points[safe]))];
        group.prepend(shape("rect", { class: "safe", x: from - 6, width: to - from + 12, y: box.top, height: box.bottom - box.top }));
        group.append(shape("text", { class: "halo", x: from, y: box.bottom - 8 }, before ? `within chance of ${run.headline.before.name}` : "within chance of this network"));
      }
      const line = shape("line", { y1: box.top, y2: box.bottom, stroke: "var(--ink)", "stroke-width": 1 });
      const dot = shape("circle", { r: 7, fill: "var(--blue)", stroke: "var(--card)", "stroke-width": 2 });
      group.append(line, dot);
      moveTo = (cut) => {
        const p = points[cut];
        line.setAttribute("x1", px(keptShare(p)));
        line.setAttribute("x2", px(keptShare(p)));
        dot.setAttribute("cx", px(keptShare(p)));
        dot.setAttribute("cy", py(p[key]));
      };
      moveTo(view.cut);
      root.style.cursor = "pointer";
      const nearest = (event) => {
        const at = event.clientX - root.getBoundingClientRect().left;
        const gaps = points.map((p) => Math.abs(px(keptShare(p)) - at));
        view.set(gaps.indexOf(Math.min(...gaps)));
      };
      root.addEventListener("pointerdown", (event) => { nearest(event); root.setPointerCapture(event.pointerId); });
      root.addEventListener("pointermove", (event) => { if (event.buttons) nearest(event); });
    },
  });
  const safe = safeUntil(points);
  const range = el("input", {
    type: "range", id: "cut", min: 0, max: points.length - 1, step: 1, value: view.cut,
    "aria-label": "Threshold: how many weights to remove", oninput: () => view.set(Number(range.value)),
  });
  const where = el("b", { id: "cut-threshold" });
  const readout = {};
  const list = el("dl", { class: "readout" });
  const names = run.task === "regression"
    ? [["zeros", "zeros"], ["weights", "parameters kept"], ["quality", "RMSE"], ["nll", "NLL, nats"], ["bytes", "size of the weights"], ["macs", "multiply-adds"]]
    : [["zeros", "zeros"], ["weights", "parameters kept"], ["quality", "test error"], ["nll", "NLL, nats"], ["ece", "ECE"], ["bytes", "size of the weights"], ["macs", "multiply-adds"]];
  for (const [id, text] of names) {
    readout[id] = el("dd", { id: "at-" + id });
    list.append(el("div", {}, el("dt", {}, text), readout[id]));
  }
  const meters = layerMeters(run);
  const command = el("code", { id: "cut-command" }), purpose = el("span", {});
  view.listen((cut) => {
    const p = points[cut];
    range.value = cut;
    range.setAttribute("aria-valuetext", `${percent(p.zeros)} zeros`);
    where.textContent = p.threshold === null ? "all weights kept" : `${scoreName(run.curve.score)} ≥ ${number(p.threshold, 3)}`;
    const texts = {
      zeros: percent(p.zeros), weights: count(p.weights), quality: showQuality(run, p[qualityKey(run)]),
      nll: number(p.nll), ece: percent(p.ece, 2), bytes: bytes(p.bytes), macs: short(p.macs),
    };
    for (const id of Object.keys(readout)) readout[id].textContent = texts[id];
    announce(`${percent(p.zeros)} zeros, ${run.task === "regression" ? "RMSE" : "error"} ${texts.quality}`);
    [purpose.textContent, command.textContent] = commandAt(run, cut);
    meters.update(cut);
    moveTo(cut);
  });
  view.dock = dock(run, view, range);
  const fields = ["zeros", "removed", "weights", "threshold", qualityKey(run), "nll", "ece", "bytes", "macs", "nonzero_macs"];
  return panel({
    title: "Error against sparsity", name: run.name + "-curve", wide: true,
    caption: `Weights are removed in one shot by ${scoreName(run.curve.score)}, weakest first, without more training`
      + (other ? ", and so are those of the network it is compared with." : ".") + " Move the slider at the foot of the window, or click the curve. Every position up to the end of the shaded zone has an error within chance of " + (before ? `that of ${run.headline.before.name}.` : "that of this network."),
    data: () => ({
      header: [...fields, ...run.curve.layers.map((n) => "kept " + n)],
      rows: points.map((p) => [...fields.map((f) => p[f]), ...p.kept]),
    }),
    body: [
      chart,
      el("p", { class: "where" }, "This position keeps weights with ", where, "."),
      list,
      meters.node,
      run.provenance.folder ? el("p", { class: "command" }, purpose, command, " ", copyButton("Copy", () => command.textContent, "copy-command")) : null,
    ],
  });
}

// What to type to get the network at a position of the slider: as it is, or cut further.
function commandAt(run, cut) {
  const folder = run.provenance.folder, point = run.curve.points[cut];
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
      const point = run.curve.points[cut];
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
