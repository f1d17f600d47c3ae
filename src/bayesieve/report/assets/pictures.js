// Pictures made of pixels: masks, examples, weights of the first layer, pixel importance.

function cssColor(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const hex = text.replace("#", "");
  return [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

// A canvas of width x height pixels; paint(i) returns [red, green, blue] of pixel i.
function pixels(width, height, paint, label) {
  // A picture without a label is beside its own description.
  const canvas = el("canvas", label ? { width, height, role: "img", "aria-label": label } : { width, height, "aria-hidden": "true" });
  repaint(canvas, paint);
  return canvas;
}

function repaint(canvas, paint) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  for (let i = 0; i < canvas.width * canvas.height; i++) {
    const [r, g, b] = paint(i);
    image.data[4 * i] = r;
    image.data[4 * i + 1] = g;
    image.data[4 * i + 2] = b;
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

// A picture of the data: (C, H, W) bytes, grey or colour.
function photo(values, shape, label) {
  const [channels, height, width] = shape;
  const area = height * width;
  const at = (c, i) => values[(channels === 3 ? c : 0) * area + i];
  return pixels(width, height, (i) => [at(0, i), at(1, i), at(2, i)], label);
}

// Red, green and blue as the four bytes of a pixel, little-endian.
const word = ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r;

const blend = (from, to, t) => from.map((v, i) => v + (to[i] - v) * t);

// Where weights are kept, at the position of the slider; whole rows and columns that are gone differ.
function maskPanel(run, view) {
  const way = wayOf(run).length, before = way ? run.curve.before.layers.map(unpack) : [];
  const drawn = run.layers.map((layer, k) => {
    const levels = unpack(layer.levels), dense = before[k];
    const [height, width] = layer.levels.shape;
    const canvas = el("canvas", { width, height, role: "img" });
    canvas.style.height = Math.min(260, Math.max(36, height * 2.2)) + "px";
    const note = el("span", {});
    return { layer, levels, dense, width, height, canvas, note };
  });
  const paintAll = (cut) => {
    const [kept, zero, gone] = [cssColor("bar"), cssColor("zero"), cssColor("gone")].map(word);
    for (const { layer, levels: own, dense, width, height, canvas, note } of drawn) {
      if (cut < 0 && !dense) {
        note.textContent = "no room in this page for the weights at this position";
        canvas.hidden = true;
        continue;
      }
      canvas.hidden = false;
      const [levels, from] = cut < 0 ? [dense, way + cut] : [own, cut];
      const rows = new Uint8Array(height), columns = new Uint8Array(width);
      for (let r = 0, i = 0; r < height; r++) {
        for (let c = 0; c < width; c++, i++) {
          if (levels[i] > from) rows[r] = columns[c] = 1;
        }
      }
      const context = canvas.getContext("2d");
      const image = context.createImageData(width, height);
      const words = new Uint32Array(image.data.buffer);
      for (let r = 0, i = 0; r < height; r++) {
        for (let c = 0; c < width; c++, i++) {
          words[i] = levels[i] > from ? kept : rows[r] && columns[c] ? zero : gone;
        }
      }
      context.putImageData(image, 0, 0);
      const live = rows.reduce((a, b) => a + b, 0), read = columns.reduce((a, b) => a + b, 0);
      const text = layer.stride > 1
        ? `one row and column in ${layer.stride} is shown`
        : `${live} of ${height} rows and ${read} of ${width} columns are left`;
      note.textContent = text;
      canvas.setAttribute("aria-label", `Kept weights of ${layer.name}: ${text}`);
    }
  };
  view.listen(paintAll);
  view.repaint = () => paintAll(view.cut);
  const key = (name, text) => {
    const box = el("i", {});
    box.style.background = `var(--${name})`;
    return el("span", {}, box, text);
  };
  return panel({
    title: "Zeros, weight by weight", name: run.name + "-masks", wide: true,
    caption: "One picture per layer, units from top to bottom, inputs from left to right. It follows the slider.",
    data: () => ({
      header: ["layer", "row", "column", "kept until position"],
      rows: drawn.flatMap(({ layer, levels, width }) => Array.from(levels, (v, i) => [layer.name, Math.floor(i / width) * layer.stride, (i % width) * layer.stride, v]).filter((row) => row[3] > 0)),
    }),
    body: [
      ...drawn.map((item) => el("div", { class: "mask" }, el("h4", {}, item.layer.name, item.note), item.canvas)),
      el("div", { class: "key" }, key("bar", "kept"), key("zero", "zero"), key("gone", "whole unit or input gone")),
    ],
  });
}

function attentionPanel(run) {
  const item = run.attention;
  if (!item) return null;
  const maps = unpack(item.maps);
  const [n, height, width] = item.maps.shape;
  const shown = Math.min(n, 14);
  const draw = () => {
    const [from, to] = [cssColor("grid"), cssColor("vermilion")];
    return Array.from({ length: shown }, (_, k) => el("figure", {},
      pixels(width, height, (i) => blend(from, to, maps[k * height * width + i] / 255), `Importance of pixels for ${item.names[k]}`),
      words(item.names[k])));
  };
  const tiles = el("div", { class: "tiles" }, draw());
  tiles.repaint = () => tiles.replaceChildren(...draw());
  return panel({
    title: "Pixels that matter", name: run.name + "-importance",
    caption: "How steeply the answer changes with each pixel: mean absolute slope of the log-probability over test images, by predicted class. Orange pixels count, grey ones do not." + (item.names[0] === "inclusion φ" ? " The map called inclusion φ is the posterior's own: inclusion probabilities on the paths from each pixel to the answer." : ""),
    data: () => ({
      header: ["map", "row", "column", "slope"],
      rows: Array.from(maps, (v, i) => {
        const k = Math.floor(i / (height * width)), p = i % (height * width);
        return [item.names[k], Math.floor(p / width), p % width, (v / 255) * item.top[k]];
      }),
    }),
    body: tiles,
  });
}

function firstLayerPanel(run) {
  const item = run.first_layer;
  if (!item) return null;
  const values = unpack(item.weights);
  const [n, height, width] = item.weights.shape;
  const draw = () => {
    const [zero, plus, minus] = [cssColor("grid"), cssColor("blue"), cssColor("vermilion")];
    return item.units.map((unit, k) => el("figure", {},
      pixels(width, height, (i) => {
        const v = values[k * height * width + i] / 32767;
        return blend(zero, v > 0 ? plus : minus, Math.sqrt(Math.abs(v)));
      }, `Weights into unit ${unit}`),
      `unit ${unit}`));
  };
  const tiles = el("div", { class: "tiles" }, draw());
  tiles.repaint = () => tiles.replaceChildren(...draw());
  const rest = item.alive > n ? `The ${n} strongest of ${item.alive} units that are left.` : `All ${item.alive} units that are left.`;
  return panel({
    title: "First layer", name: run.name + "-first-layer",
    caption: `What each unit of ${item.name} looks for: blue weights add, orange ones subtract, grey ones are zero. ${rest}`,
    data: () => ({
      header: ["unit", "row", "column", "weight"],
      rows: Array.from(values, (v, i) => {
        const k = Math.floor(i / (height * width)), p = i % (height * width);
        return [item.units[k], Math.floor(p / width), p % width, (v / 32767) * item.top];
      }).filter((row) => row[3] !== 0),
    }),
    body: tiles,
  });
}
