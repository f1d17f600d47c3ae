// The network itself: draw or set an input, and see its answer with aleatoric and epistemic uncertainty.

function playSection(run, view) {
  if (!run.network) {
    const why = run.not_embedded || "its inputs cannot be set by hand";
    return { node: panel({ title: "The network", wide: true, body: empty(`This network is not inside the page: ${why.replace(/\.$/, "")}.`) }), pick: () => {} };
  }
  const network = loadNetwork(run.network), known = loadFamiliarity(run.familiarity);
  const way = wayOf(run).length, dense = run.network_before ? loadNetwork(run.network_before) : null;
  const answer = el("div", { id: "answer" });
  let input = null;
  const show = () => {
    if (!input) {
      answer.replaceChildren(empty(run.inputs.kind === "image" ? "Draw something, or take a test example." : "Move a slider."));
      return;
    }
    const share = known ? familiarityOf(known, input) : null, strange = share !== null && share < STRANGE;
    if (view.cut < 0 && !dense) {
      answer.replaceChildren(empty("The weights at this position are not inside this page: they would take too much room. Move the slider on."));
      return;
    }
    const [shown, cut] = view.cut < 0 ? [dense, way + view.cut] : [network, view.cut];
    const item = (run.task === "regression" ? realAnswer : classAnswer)(run, shown, input, cut, strange);
    answer.replaceChildren(item, ...(known ? [familiarityDial(share)] : []));
  };
  const set = (x, raw) => {
    input = x;
    view.tried = x ? raw || x : null; // as a link holds it
    view.changed();
    show();
    const said = answer.querySelector("[data-class]");
    if (x && answer.querySelector(".answer")) announce(answer.querySelector(".answer").textContent);
    return said ? run.data.classes.indexOf(said.dataset.class) : 0; // the class whose curves are of interest
  };
  const left = run.inputs.kind === "image" ? imageInput(run, set) : tableInput(run, set);
  view.listen(show);
  const check = el("p", { class: "check", id: "self-check" }, "Comparing with torch …");
  setTimeout(() => compareWithTorch(check, network), 60); // after the first paint
  const kept = run.network.steps.reduce((sum, step) => sum + (step.value ? step.value.shape[1] : 0), 0);
  const node = panel({
    title: "Try the network", wide: true,
    caption: `${count(kept)} weights, 16 bits each${network.n_draws ? `, and ${network.n_draws} draws from the posterior` : ""}, run here in plain JavaScript. Nothing leaves this page. The slider prunes this network too.`,
    body: [el("div", { class: "play" }, left.node, answer), check],
  });
  return { node, pick: left.pick };
}

function compareWithTorch(node, network) {
  const { worst, ok, n } = selfCheck(network);
  const { n: built, max_difference: difference } = network.check;
  node.dataset.worst = worst;
  node.classList.toggle("bad", !ok);
  node.textContent = ok
    ? `✓ This browser's answers agree with torch within ${number(Math.max(worst, 1e-9), 2)} on ${n} test examples; torch itself ran the stored weights on ${count(built)} when the page was made (largest difference ${number(difference, 2)}).`
    : `✗ This browser's answers differ from torch by ${number(worst, 2)}: do not trust them.`;
}

function imageInput(run, set) {
  const { shape, box, drawable } = run.inputs;
  const [channels, height, width] = shape;
  const preview = el("canvas", { width, height, role: "img", "aria-label": "What the network sees" });
  const see = (values) => {
    repaint(preview, (i) => [0, 1, 2].map((c) => 255 * values[(channels === 3 ? c : 0) * height * width + i]));
    set(prepareImage(values, run.inputs), Uint8Array.from(values, (v) => Math.round(255 * v)));
  };
  const reset = () => {
    repaint(preview, () => [16, 18, 22]);
    set(null);
  };
  const pad = drawable ? drawingPad((ink, side) => {
    const values = asTrained(ink, side, height, width, box, run.inputs.ink);
    if (values.some((v) => v > 0)) see(values);
    else reset();
  }) : null;
  const pick = (bytesOf) => {
    const values = Float32Array.from(bytesOf, (v) => v / 255);
    if (pad) pad.show(values, height, width);
    see(values);
  };
  const pool = run.examples ? ["least", "wrong", "most"].flatMap((kind) => {
    const item = run.examples[kind], all = unpack(item.inputs), size = channels * height * width;
    return item.index.map((_, k) => all.subarray(k * size, (k + 1) * size));
  }) : [];
  let next = 0;
  const strangers = pad ? strangerButtons(run, pad, pick, () => pool[0]) : null;
  const example = pool.length ? el("button", { type: "button", class: "button", id: "next-example", onclick: () => pick(pool[next++ % pool.length]) }, "Next example") : null;
  const clear = pad ? el("button", { type: "button", class: "button", id: "clear", onclick: () => pad.clear() }, "Clear") : null;
  reset();
  if (pool.length) setTimeout(() => pick(pool[next++]), 0);
  return {
    pick,
    node: el("div", {}, pad ? [el("p", { class: "caption" }, "Draw here, with a pen, a finger or the arrow keys."), pad.canvas] : null, el("div", { class: "buttons" }, clear, example, strangers),
      el("div", { class: "seen" }, preview, el("span", {}, `What the network sees: ${width}×${height} pixels${pad ? ", brought to the size of its training images" : ""}.`))),
  };
}

// Inputs that are not of the data, ready to try: strokes on the pad, or pictures.
const LETTER = [[[0.2, 0.85], [0.5, 0.12], [0.8, 0.85]], [[0.32, 0.58], [0.68, 0.58]]];
const SHOE = [[[0.08, 0.72], [0.1, 0.42], [0.3, 0.36], [0.42, 0.5], [0.68, 0.6], [0.92, 0.66], [0.93, 0.78], [0.08, 0.78], [0.08, 0.72]], [[0.12, 0.66], [0.9, 0.74]], [[0.42, 0.5], [0.36, 0.62]], [[0.54, 0.55], [0.48, 0.66]]];

function strangerButtons(run, pad, pick, example) {
  const [, height, width] = run.inputs.shape;
  const button = (text, onclick) => el("button", { type: "button", class: "button stranger", onclick }, text);
  const noise = () => {
    let state = 7; // the same noise each time
    pick(Uint8Array.from({ length: height * width }, () => { state = (state * 16807) % 2147483647; return state % 256; }));
  };
  const turned = () => {
    const image = example();
    if (height === width && image) pick(Uint8Array.from(image, (_, i) => image[(height - 1 - (i % width)) * width + Math.floor(i / width)]));
  };
  return [button("A letter", () => pad.draw(LETTER)), button("A shoe", () => pad.draw(SHOE)), button("Noise", noise), height === width ? button("Turned example", turned) : null];
}

// Partial dependence of one column under its slider: the mean answer over training rows with a band over draws, and where the slider is.
function dependenceCurve(run, column, item) {
  const names = run.data.classes, height = 76, width = 300, categories = item.at === null;
  const at = item.at || item.mean.map((_, i) => i);
  const [from, to] = categories ? [-0.5, at.length - 0.5] : [column.low, column.high];
  const px = (v) => 6 + (width - 12) * (to === from ? 0.5 : (v - from) / (to - from));
  const root = shape("svg", { viewBox: `0 0 ${width} ${height}`, class: "dependence", role: "img" });
  const line = shape("line", { y1: 2, y2: height - 12, stroke: "var(--ink)", "stroke-width": 1.2 });
  let drawn = -1;
  const draw = (c) => {
    const pick = (rows) => rows.map((row) => row[c]);
    const mean = pick(item.mean), low = item.low ? pick(item.low) : mean, high = item.high ? pick(item.high) : mean;
    const all = names ? [0, 1] : run.dependenceRange;
    const py = (v) => height - 14 - (height - 18) * ((v - all[0]) / (all[1] - all[0] || 1));
    const show = (v) => (names ? percent(v, 0) : number(v, 3));
    const marks = categories
      ? at.flatMap((v) => [shape("line", { x1: px(v), x2: px(v), y1: py(low[v]), y2: py(high[v]), stroke: "var(--sky)", "stroke-width": 5, "stroke-opacity": 0.5 }), shape("circle", { cx: px(v), cy: py(mean[v]), r: 3, fill: "var(--blue)" })])
      : [shape("path", { d: path([...at.map((v, i) => [v, high[i]]), ...at.map((v, i) => [v, low[i]]).reverse()], px, py) + "Z", fill: "var(--sky)", "fill-opacity": 0.35 }), shape("path", { d: path(at.map((v, i) => [v, mean[i]]), px, py), fill: "none", stroke: "var(--blue)", "stroke-width": 1.8 })];
    const ends = [mean.indexOf(Math.min(...mean)), mean.indexOf(Math.max(...mean))].map((i) => `${show(mean[i])} at ${categories ? column.levels[at[i]] : number(nearZero(at[i], column), 3)}`);
    root.replaceChildren(...marks, line, shape("text", { x: 6, y: height - 2 }, names ? `P(${names[c]}): ${ends.join(" to ")}` : ends.join(" to ")));
    root.setAttribute("aria-label", `Average answer by ${column.name}${names ? `, probability of ${names[c]}` : ""}: ${ends.join(" to ")}`);
  };
  const update = (value, answer) => {
    if (answer !== drawn) draw(answer);
    drawn = answer;
    line.setAttribute("x1", px(value));
    line.setAttribute("x2", px(value));
  };
  return { node: root, update };
}

function tableInput(run, set) {
  const columns = run.inputs.columns;
  if (!columns) return { pick: set, node: empty("Pick a test example below; these inputs have no columns to set.") };
  const size = run.network.input_shape.reduce((a, b) => a * b, 1);
  const values = columns.map((column) => column.start);
  if (run.dependence && !run.data.classes) { // one scale for all columns, so that steep ones look steep
    const all = Object.values(run.dependence).flatMap((item) => [...(item.low || item.mean), ...(item.high || item.mean)].map((row) => row[0]));
    run.dependenceRange = [Math.min(...all), Math.max(...all)];
  }
  const update = () => {
    const answered = set(prepareRow(values, columns, size));
    controls.forEach((item, k) => { if (item.curve) item.curve.update(values[k], answered); });
  };
  const ranked = new Map((run.features || []).map((item, i) => [item.name, { ...item, place: i }]));
  const strength = (column) => {
    const names = column.kind === "numeric" ? [column.name] : column.levels.map((level) => `${column.name}=${level}`);
    const found = names.map((name) => ranked.get(name)).filter(Boolean);
    return { place: Math.min(...found.map((item) => item.place), 1e9), reads: found.some((item) => item.reads !== 0) };
  };
  const controls = columns.map((column, k) => {
    const label = el("b", {});
    const id = "column-" + k;
    let control;
    const write = () => {
      label.textContent = column.kind === "numeric" ? number(nearZero(values[k], column)) : "";
    };
    if (column.kind === "numeric") {
      const step = column.whole && column.high - column.low > 1 ? 1 : (column.high - column.low) / 200 || 1;
      control = el("input", { type: "range", id, min: column.low, max: column.high, step, value: values[k], oninput: () => { values[k] = Number(control.value); write(); update(); } });
    } else {
      control = el("select", { id, onchange: () => { values[k] = control.selectedIndex; update(); } }, column.levels.map((level) => el("option", {}, level)));
      control.selectedIndex = values[k];
    }
    write();
    const renew = () => {
      if (column.kind === "numeric") control.value = values[k];
      else control.selectedIndex = values[k];
      write();
    };
    const curve = run.dependence && run.dependence[column.name] ? dependenceCurve(run, column, run.dependence[column.name]) : null;
    return { ...strength(column), renew, curve, node: el("div", { class: "slider" }, el("label", { for: id }, el("span", {}, column.name), label), control, curve ? curve.node : null) };
  });
  const order = [...controls].sort((a, b) => a.place - b.place);
  const read = order.filter((item) => item.reads).slice(0, 14);
  const rest = order.filter((item) => !read.includes(item));
  const reset = () => {
    columns.forEach((column, k) => { values[k] = column.start; });
    controls.forEach((item) => item.renew());
    update();
  };
  setTimeout(update, 0);
  return {
    pick: (row) => {
      readRow(row, columns).forEach((value, k) => { values[k] = value; });
      controls.forEach((item) => item.renew());
      update();
    },
    node: el("div", {}, run.dependence ? el("p", { class: "caption" }, `Under a slider: the average answer${run.data.classes ? ", the probability of what it says now," : ""} over training rows with this column set so, and its 90 % band over draws of the weights.`) : null,
      el("div", { class: "features" }, read.map((item) => item.node)),
      rest.length ? el("details", {}, el("summary", {}, `${rest.length} more columns, less important or not read at all`), el("div", { class: "features" }, rest.map((item) => item.node))) : null,
      el("div", { class: "buttons" }, el("button", { type: "button", class: "button", onclick: reset }, "Back to the middle"))),
  };
}

// The answer, or that the input is out of distribution, with the prediction it would make.
function spoken(strange, answer, sure) {
  if (!strange) return el("p", { class: "answer" }, answer, " ", el("small", {}, sure));
  return el("p", { class: "answer abstains" }, "Unlike the training data: no answer. ", el("small", {}, `The network alone would predict ${answer} ${sure}.`));
}

function classAnswer(run, network, input, cut, strange) {
  const item = classify(network, input, cut);
  const names = run.data.classes;
  const best = item.probs.indexOf(Math.max(...item.probs));
  const order = names.length <= 12 ? names.map((_, c) => c)
    : item.probs.map((p, c) => [p, c]).sort((a, b) => b[0] - a[0]).slice(0, 10).map((pair) => pair[1]);
  const row = innerWidth < 480 ? 16 : 24, height = row * order.length + 22;
  const chart = responsive((width) => {
    const left = Math.min(120, 14 + 8 * Math.max(...order.map((c) => names[c].length)));
    const px = (p) => left + p * (width - left - 58);
    const root = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Predictive distribution: " + order.map((c) => `${names[c]} ${percent(item.probs[c], 0)}`).join(", ") });
    order.forEach((c, i) => {
      const y = i * row;
      root.append(
        shape("text", { class: "axis-label", x: left - 8, y: y + row / 2 + 4, "text-anchor": "end" }, names[c]),
        shape("rect", { x: left, y: y + 4, width: px(1) - left, height: row - 8, rx: 3, fill: "var(--grid)" }),
        shape("rect", { x: left, y: y + 4, width: Math.max(0, px(item.probs[c]) - left), height: row - 8, rx: 3, fill: c === best ? "var(--bar)" : "var(--muted)" }),
      );
      item.draws.forEach((probs) => root.append(shape("circle", { cx: px(probs[c]), cy: y + row / 2, r: 2.4, fill: "var(--orange)", stroke: "var(--card)", "stroke-width": 0.6 })));
      root.append(shape("text", { x: px(1) + 8, y: y + row / 2 + 4 }, percent(item.probs[c], 1)));
    });
    if (item.draws.length) root.append(shape("text", { x: left, y: height - 4 }, "bars: average. dots: each draw of the weights"));
    return root;
  });
  const doubt = item.epistemic === null
    ? el("p", { class: "caption" }, `Uncertainty ${nats(run, "entropy", item.total)}. This model has no spread of weights, so it cannot be split.`)
    : doubtBar(run, item.total, item.epistemic, Math.log(names.length), strange);
  return el("div", { "data-class": names[best], "data-probs": item.probs.map((p) => p.toFixed(6)).join(" ") },
    spoken(strange, names[best], `with ${percent(item.probs[best], 1)}`), chart, doubt);
}

// A number of nats, and how many test examples have less of it.
function nats(run, key, value) {
  const quantiles = run.examples.quantiles && run.examples.quantiles[key];
  return `${number(value, 3)} nats` + (quantiles ? `, more than ${percent(shareBelow(quantiles, value), 0)} of test examples` : "");
}

// Total uncertainty, split into aleatoric and epistemic. Out of distribution there is no aleatoric part.
function doubtBar(run, total, epistemic, most, strange) {
  const noise = Math.max(0, total - epistemic);
  const doubt = [el("span", {}, "epistemic uncertainty"), track(epistemic / most), el("span", { id: "epistemic" }, nats(run, "epistemic", epistemic))];
  if (strange) {
    return el("div", { class: "rank" }, el("span", {}, "uncertainty of the answer"), track(total / most), el("span", {}, nats(run, "entropy", total)), doubt);
  }
  return el("div", { class: "rank" }, el("span", {}, "aleatoric uncertainty"), track(noise / most), el("span", {}, number(noise, 3) + " nats"), doubt);
}

function realAnswer(run, network, input, cut, strange) {
  const item = regress(network, input, cut);
  const scale = run.data.target_std[0], shift = run.data.target_mean[0];
  const mean = item.center * scale + shift, noise = item.aleatoric * scale;
  const doubt = item.epistemic === null ? 0 : item.epistemic * scale;
  const std = Math.hypot(noise, doubt);
  const centers = item.draws.length ? item.draws.map((v) => v * scale + shift) : [mean];
  const low = mean - 4 * std, high = mean + 4 * std;
  const bump = noiseShape(run.network.df, noise), half = run.network.factor_90 * std;
  const density = (v) => centers.reduce((sum, m) => sum + bump(v - m), 0) / centers.length;
  const grid = Array.from({ length: 121 }, (_, i) => low + ((high - low) * i) / 120);
  const points = grid.map((v) => [v, density(v)]);
  const top = Math.max(...points.map((p) => p[1]));
  const chart = lines({
    series: [{ kind: "c0", points }], height: 210, label: "Predictive density",
    x: { low, high, label: run.data.target || "target" }, y: { low: 0, high: top * 1.1, label: "density" },
    marks: ({ group, px, box }) => {
      const [a, b] = [mean - half, mean + half];
      group.prepend(shape("rect", { x: px(a), width: px(b) - px(a), y: box.top, height: box.bottom - box.top, fill: "var(--sky)", opacity: 0.16 }));
      centers.forEach((m) => group.append(shape("line", { x1: px(m), x2: px(m), y1: box.bottom - 9, y2: box.bottom, stroke: "var(--orange)", "stroke-width": 2 })));
    },
  });
  const line = (name, value, id) => [el("span", {}, name), track(value / (noise + doubt || 1)), el("span", { id }, number(value, 3))];
  return el("div", { "data-mean": mean },
    spoken(strange, number(mean), `± ${number(std, 3)}; 90 % between ${number(mean - half, 3)} and ${number(mean + half, 3)}`),
    chart,
    el("div", { class: "rank" }, line(strange ? "aleatoric, as if it were data" : "aleatoric uncertainty", noise), item.epistemic === null ? [] : line("epistemic uncertainty", doubt, "epistemic")));
}
