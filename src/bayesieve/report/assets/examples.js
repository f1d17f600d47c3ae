// Test examples one by one: the most and the least certain, and the mistakes.

const ROW_COLUMNS = 4; // columns of a table shown beside an answer
const MOST_ROWS = 5; // the rest is in the data to download
const MOST_THUMBS = 48; // thumbnails of a lasso

// Whether a point is inside a closed line, by how often a ray from it crosses the line.
function within(x, y, corners) {
  let inside = false;
  corners.forEach(([x1, y1], i) => {
    const [x2, y2] = corners[(i + 1) % corners.length];
    if (y1 > y !== y2 > y && x < x1 + ((y - y1) / (y2 - y1)) * (x2 - x1)) inside = !inside;
  });
  return inside;
}

function examplePanels(run, onPick) {
  const real = run.task === "regression";
  const wrong = real
    ? ["Furthest off", "Targets furthest from the predicted mean, in predicted standard deviations."]
    : [`Confident mistakes (${count(run.examples.n_wrong)} wrong in all)`, "The wrong answers with the highest confidence."];
  const hint = run.network ? " A click puts an example into the network." : "";
  return [
    examplePanel(run, "wrong", wrong[0], wrong[1] + hint, onPick),
    examplePanel(run, "least", "Least certain", real ? "Where its intervals are widest." : "Where its entropy is highest.", onPick),
    examplePanel(run, "most", "Most certain", real ? "Where its intervals are narrowest." : "Where its entropy is lowest.", onPick),
  ];
}

// Every test example as a dot: confidence against familiarity of the input, or entropy.
function mapPanel(run, onPick) {
  const map = run.map;
  if (!map) return null;
  const names = run.data.classes, packed = !Array.isArray(map.inputs);
  const size = run.data.input_shape.reduce((a, b) => a * b, 1), values = packed ? unpack(map.inputs) : null;
  const n = run.network ? (packed ? values.length / size : map.inputs.length) : 0;
  const input = (i) => (packed ? values.subarray(i * size, (i + 1) * size) : map.inputs[i]);
  const height = map.familiarity || map.doubt;
  const dots = map.index.map((_, i) => [map.sure[i], height[i], i < n ? 3.5 : 1.8, i]);
  const right = (i) => map.said[i] === map.label[i];
  const place = el("div", { class: "picked" });
  let at = -1;
  const show = (i) => {
    at = i;
    const words = `test example ${count(map.index[i])}: says ${names[map.said[i]]} with ${percent(map.sure[i], 1)}, is ${names[map.label[i]]}`;
    place.replaceChildren(packed ? photo(input(i), run.data.input_shape, "") : "", el("span", { class: right(i) ? "" : "wrong" }, words), " ",
      el("button", { type: "button", class: "button", onclick: () => onPick(input(i)) }, "Try it"));
    announce(words);
  };
  // What a lasso holds: how many, how many wrong, and those with their input in the page.
  const gather = (chosen) => {
    const stored = chosen.filter((i) => i < n), wrong = chosen.filter((i) => !right(i)).length;
    const text = chosen.length ? `${count(chosen.length)} test examples inside, ${count(wrong)} of them wrong${stored.length < chosen.length ? `; ${count(Math.min(stored.length, MOST_THUMBS))} with their input in the page` : ""}:` : "No dot is inside.";
    const thumbs = stored.slice(0, MOST_THUMBS).map((i) => {
      const told = `says ${names[map.said[i]]}${right(i) ? "" : `, is ${names[map.label[i]]}`}`;
      return el("button", { type: "button", class: "thumbnail" + (right(i) ? "" : " wrong"), onclick: () => show(i) },
        packed ? photo(input(i), run.data.input_shape, "") : null, el("span", {}, packed ? told : `row ${count(map.index[i])}: ${told}`));
    });
    place.replaceChildren(el("span", {}, text), el("div", { class: "thumbnails" }, thumbs));
    announce(text);
  };
  const chart = lines({
    label: "Map of uncertainty", height: 280,
    series: [["right", "c0", true], ["wrong", "c1", false]].map(([name, kind, is]) => ({ name, kind, bare: true, dots: true, cross: !is, points: dots.filter((dot) => right(dot[3]) === is) })),
    x: { low: Math.min(...map.sure, 0.99) - 0.02, high: 1.01, label: "confidence", format: (v) => Math.round(100 * v) + " %" },
    y: map.familiarity ? { low: 0, high: 1.02, label: "familiarity of the input", format: (v) => Math.round(100 * v) + " %" }
      : { low: 0, high: Math.max(...map.doubt, 0.1) * 1.05, label: "entropy, nats" },
    marks: ({ root, group, px, py }) => {
      if (!n) return;
      root.style.cursor = "crosshair";
      root.style.touchAction = "pan-y";
      // A click takes the nearest dot, a line drawn around dots all of them.
      let line = null;
      const trail = shape("path", { class: "lasso" });
      const place = (event) => { const frame = root.getBoundingClientRect(); return [event.clientX - frame.left, event.clientY - frame.top]; };
      root.addEventListener("pointerdown", (event) => { line = [place(event)]; root.setPointerCapture(event.pointerId); group.append(trail); });
      root.addEventListener("pointermove", (event) => {
        if (!line) return;
        line.push(place(event));
        trail.setAttribute("d", "M" + line.map((p) => p.map((v) => v.toFixed(1)).join(" ")).join("L") + "Z");
      });
      root.addEventListener("pointerup", () => {
        const drawn = line || [];
        line = null;
        const [x0, y0] = drawn[0] || [0, 0];
        if (drawn.some(([x, y]) => Math.hypot(x - x0, y - y0) > 8)) {
          gather(dots.filter((dot) => within(px(dot[0]), py(dot[1]), drawn)).map((dot) => dot[3]));
          return;
        }
        trail.remove();
        const far = (dot) => Math.hypot(px(dot[0]) - x0, py(dot[1]) - y0);
        show(dots.slice(0, n).reduce((best, dot) => (far(dot) < far(best) ? dot : best))[3]);
      });
      root.addEventListener("pointercancel", () => { line = null; });
    },
  });
  const step = (text, by) => el("button", { type: "button", class: "button", onclick: () => show((at + by + n) % n) }, text);
  return panel({
    title: "Map of uncertainty", name: run.name + "-map", wide: true,
    caption: `A dot per test example. Lower dots are less like the training data; dots to the left are less confident.${n ? ` The ${count(n)} larger ones have their input in the page: click one, or draw a line around some to see them together.` : ""}`,
    data: () => ({ header: ["test example", "confidence", "entropy", "familiarity", "label", "said"], rows: map.index.map((index, i) => [index, map.sure[i], map.doubt[i], map.familiarity && map.familiarity[i], names[map.label[i]], names[map.said[i]]]) }),
    body: [chart, n ? el("div", { class: "buttons" }, step("Previous dot", -1), step("Next dot", 1)) : null, place],
  });
}

function examplePanel(run, kind, title, caption, onPick) {
  const set = run.examples[kind];
  const isImage = !Array.isArray(set.inputs);
  const body = !set.index.length ? empty("No test example was classified wrongly.")
    : isImage ? exampleCards(run, set, onPick) : exampleRows(run, set, onPick, title);
  return panel({ title, caption, name: `${run.name}-examples-${kind}`, wide: true, data: () => exampleData(run, set), body });
}

function exampleData(run, set) {
  if (run.task === "regression") {
    const keys = ["target", "mean", "std", "epistemic", "surprise"];
    return { header: ["test example", ...keys], rows: set.index.map((index, k) => [index, ...keys.map((key) => set[key][k])]) };
  }
  const names = run.data.classes;
  return {
    header: ["test example", "label", "entropy", "epistemic", ...names.map((n) => "p " + n)],
    rows: set.index.map((index, k) => [index, names[set.label[k]], set.entropy[k], set.epistemic[k], ...set.probs[k]]),
  };
}

// What the network says of an example, and what is true.
function verdict(run, set, k) {
  if (run.task === "regression") return { right: true, words: `says ${number(set.mean[k])}, is ${number(set.target[k])}` };
  const names = run.data.classes, label = set.label[k];
  const guess = set.probs[k].indexOf(Math.max(...set.probs[k]));
  return { right: guess === label, words: guess === label ? `is ${names[label]}` : `says ${names[guess]}, is ${names[label]}` };
}

// The most probable classes as small bars.
function miniBars(probs, names, label) {
  const order = probs.map((p, c) => [p, c]).sort((a, b) => b[0] - a[0]).slice(0, 3);
  return el("span", { class: "mini" + (names.some((name) => name.length > 2) ? " long" : "") }, order.flatMap(([p, c]) => [
    el("span", { class: "name" }, names[c]), track(p, c === label ? "" : "other"), el("span", {}, percent(p, 0)),
  ]));
}

// What a button says beside what it shows, for readers who do not see it.
function unseen(text) {
  return el("span", { class: "unseen" }, text);
}

function pickName(run) {
  return run.network ? " Put it into the network." : "";
}

function exampleCards(run, set, onPick) {
  const values = unpack(set.inputs);
  const size = run.data.input_shape.reduce((a, b) => a * b, 1);
  return el("div", { class: "examples" }, set.index.map((index, k) => {
    const input = values.subarray(k * size, (k + 1) * size);
    const { right, words } = verdict(run, set, k);
    return el("button", { type: "button", class: "example", onclick: () => onPick(input) }, unseen(`Test example ${index}: `),
      photo(input, run.data.input_shape, ""), el("span", { class: "who" }, el("span", { class: right ? "" : "wrong" }, words)), unseen("." + pickName(run)),
      run.task === "regression" ? null : miniBars(set.probs[k], run.data.classes, set.label[k]));
  }));
}

// Rows of a table with the columns that matter most, in their own units.
function exampleRows(run, set, onPick, title) {
  const columns = run.inputs.columns || [];
  const place = new Map((run.features || []).map((item, i) => [item.name, i]));
  const rank = (column) => Math.min(...(column.kind === "numeric" ? [column.name] : column.levels.map((level) => `${column.name}=${level}`))
    .map((name) => place.get(name) ?? 1e9));
  const shown = columns.map((column, k) => [rank(column), k]).sort((a, b) => a[0] - b[0]).slice(0, ROW_COLUMNS).map((pair) => pair[1]);
  const real = run.task === "regression";
  const heads = real ? [run.data.target || "target", "prediction", "off by"] : ["it says"];
  const rows = set.index.slice(0, MOST_ROWS).map((index, k) => {
    const { right, words } = verdict(run, set, k);
    const values = readRow(set.inputs[k], columns);
    const cells = shown.map((c) => el("td", {}, columns[c].kind === "numeric" ? number(nearZero(values[c], columns[c])) : columns[c].levels[values[c]]));
    const answer = real
      ? [el("td", {}, number(set.target[k])), el("td", {}, `${number(set.mean[k])} ± ${number(set.std[k], 2)}`), el("td", {}, `${number(set.surprise[k], 2)} std`)]
      : [el("td", { class: "text" }, el("span", { class: right ? "" : "wrong" }, words), miniBars(set.probs[k], run.data.classes, set.label[k]))];
    const button = el("button", { type: "button", class: "button", onclick: () => onPick(set.inputs[k]) }, "try", unseen(` test example ${index}: ${words}.${pickName(run)}`));
    return el("tr", {}, el("th", { scope: "row" }, count(index)), answer, cells, run.network ? el("td", {}, button) : null);
  });
  const header = el("tr", {}, el("th", { scope: "col" }, "test row"), heads.map((text) => el("th", { scope: "col", class: real ? "" : "text" }, text)),
    shown.map((c) => el("th", { scope: "col" }, columns[c].name)), run.network ? el("td", {}) : null);
  return scroll(`Test rows: ${title}`, el("table", { class: "rows" }, el("thead", {}, header), el("tbody", {}, rows)));
}
