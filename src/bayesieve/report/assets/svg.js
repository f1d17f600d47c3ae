// Building blocks: elements, panels with downloads, and axes drawn at the width that is there.

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "class") node.className = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((item) => item !== null && item !== undefined));
  return node;
}

function shape(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

function save(name, text, type) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// A button that puts text on the clipboard and says so.
function copyButton(label, text, id) {
  const button = el("button", { type: "button", class: "button copy", id, onclick: async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "The browser refused";
    }
    setTimeout(() => { button.textContent = label; }, 1500);
  } }, label);
  return button;
}

// The title, legend and drawings of a panel as one PNG, in the colours of the screen; captions and tables stay behind.
async function pictureOf(box) {
  const drawn = [...box.querySelectorAll("svg, canvas")].filter((node) => !node.closest("button") && node.getBoundingClientRect().width > 0);
  const texts = [...box.querySelectorAll("h4, .legend b, .tiles figure")], title = box.querySelector("h3").getBoundingClientRect();
  const frame = box.getBoundingClientRect(), places = [...drawn, ...texts].map((node) => node.getBoundingClientRect());
  const top = Math.min(...places.map((at) => at.top)), bottom = Math.max(...places.map((at) => at.bottom));
  const head = title.bottom - frame.top + 10, scale = 2, height = head + bottom - top + 12;
  const canvas = el("canvas", { width: Math.round(scale * frame.width), height: Math.round(scale * height) });
  const context = canvas.getContext("2d"), style = getComputedStyle(box);
  context.scale(scale, scale);
  context.fillStyle = style.backgroundColor;
  context.fillRect(0, 0, frame.width, height);
  context.imageSmoothingEnabled = false;
  for (const node of drawn) {
    const at = node.getBoundingClientRect();
    const image = node.tagName === "CANVAS" ? node : await imageOf(node);
    context.drawImage(image, at.left - frame.left, at.top - top + head, at.width, at.height);
  }
  const write = (node, y) => {
    const item = getComputedStyle(node), text = [...node.childNodes].filter((part) => part.nodeType === 3).map((part) => part.textContent).join("");
    context.font = `${item.fontWeight} ${item.fontSize} ${style.fontFamily}`;
    context.fillStyle = item.color;
    context.fillText(text, node.getBoundingClientRect().left - frame.left, y);
  };
  write(box.querySelector("h3"), head - 15);
  texts.forEach((node) => write(node, node.getBoundingClientRect().bottom - top + head - 5));
  return new Promise((done) => { canvas.toBlob(done, "image/png"); });
}

const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "opacity", "font-size", "font-family", "font-weight", "color", "paint-order"];

// A drawing with the colours and fonts that the style sheet gives it, as an image.
function imageOf(node) {
  const copy = node.cloneNode(true), originals = [node, ...node.querySelectorAll("*")], copies = [copy, ...copy.querySelectorAll("*")];
  originals.forEach((item, i) => {
    const style = getComputedStyle(item);
    for (const name of LOOKS) copies[i].setAttribute(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const image = new Image();
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(new XMLSerializer().serializeToString(copy));
  return image.decode().then(() => image);
}

// Puts the picture of a panel on the clipboard, or saves it where the browser does not let it.
async function copyPicture(button, name) {
  const png = await pictureOf(button.closest(".panel"));
  let text = "copied";
  try {
    await navigator.clipboard.write([new ClipboardItem({ "image/png": png })]);
  } catch {
    save(name + ".png", png, "image/png");
    text = "saved";
  }
  button.textContent = text;
  setTimeout(() => { button.textContent = "png"; }, 1500);
}

// A titled box; `data` returns {header, rows} of what is drawn, to download.
function panel({ title, caption, name, data, body, wide }) {
  const downloads = el("div", { class: "downloads" });
  if (data) {
    const csvFile = () => { const item = data(); save(name + ".csv", csv(item.header, item.rows), "text/csv"); };
    const jsonFile = () => {
      const item = data();
      const rows = item.rows.map((row) => Object.fromEntries(item.header.map((key, i) => [key, row[i]])));
      save(name + ".json", JSON.stringify(rows, null, 1), "application/json");
    };
    const picture = el("button", { type: "button", class: "picture", onclick: () => copyPicture(picture, name), "aria-label": `Copy picture of ${title} as PNG` }, "png");
    downloads.append(
      ...([body].flat().some((node) => node && (node.querySelector ? node.querySelector("svg, canvas") || node.redraw : false)) ? [picture] : []),
      el("button", { type: "button", onclick: csvFile, "aria-label": `Download ${title} as CSV` }, "csv"),
      el("button", { type: "button", onclick: jsonFile, "aria-label": `Download ${title} as JSON` }, "json"),
    );
  }
  return el("figure", { class: "panel" + (wide ? " wide" : ""), "data-panel": name || null },
    el("header", {}, el("h3", {}, title), downloads),
    caption ? el("p", { class: "caption" }, words(caption)) : null,
    ...[body].flat());
}

// A table that may be wider than the page; its edge is shaded where more of it is hidden.
function scroll(label, table) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
}

// One short sentence for screen readers, once the reader has stopped moving things.
let announcing = 0;
function announce(text) {
  clearTimeout(announcing);
  announcing = setTimeout(() => {
    const node = document.getElementById("status");
    if (node) node.textContent = text;
  }, 500);
}

function empty(text) {
  return el("p", { class: "empty" }, text);
}

// Calls draw(width) now and whenever the width changes; draw returns the node to show.
function responsive(draw) {
  const holder = el("div", {});
  let last = 0;
  const update = (width) => {
    if (width < 1 || Math.abs(width - last) < 1) return;
    last = width;
    holder.replaceChildren(draw(Math.max(width, 220)));
  };
  new ResizeObserver((entries) => update(entries[0].contentRect.width)).observe(holder);
  holder.redraw = () => { const width = last; last = 0; update(width); };
  return holder;
}

// At least three ticks: a finer step until there are.
function enough(make, n) {
  for (let k = n; k < 8 * n; k *= 1.5) {
    const made = make(k);
    if (made.length >= 3) return made;
  }
  return make(8 * n);
}

// Axes of a chart: returns the svg, the scales and the group to draw in.
function axes({ width, height, x, y, label }) {
  const root = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const yTicks = y.ticks || (y.log ? logTicks(y.low, y.high) : enough((n) => ticks(y.low, y.high, n), Math.max(3, height / 48)));
  const yText = yTicks.map(y.format || ((v) => number(v, 3)));
  const left = Math.max(30, ...yText.map((text) => 7 * text.length + 12));
  const box = { left, right: width - 12, top: y.label ? 26 : 10, bottom: height - (x.label ? 40 : 24) };
  const scale = (axis, from, to) => {
    const f = axis.log ? Math.log : (v) => v;
    const low = f(axis.low), high = f(axis.high);
    return (v) => from + (to - from) * (high === low ? 0.5 : (f(v) - low) / (high - low));
  };
  const px = scale(x, box.left, box.right);
  const py = scale(y, box.bottom, box.top);
  const xTicks = x.ticks || (x.log ? logTicks(x.low, x.high) : enough((n) => ticks(x.low, x.high, n), Math.max(3, width / 64)));
  const room = (box.right - box.left) / 46;
  const every = Math.max(1, Math.ceil(xTicks.length / room));
  yTicks.forEach((v, i) => {
    root.append(
      shape("line", { class: "grid-line", x1: box.left, x2: box.right, y1: py(v), y2: py(v) }),
      shape("text", { x: box.left - 7, y: py(v) + 4, "text-anchor": "end" }, yText[i]),
    );
  });
  xTicks.forEach((v, i) => {
    if (i % every) return;
    const end = px(v) > box.right - 14 ? "end" : "middle";
    root.append(shape("text", { x: px(v), y: box.bottom + 17, "text-anchor": end }, (x.format || ((u) => number(u, 3)))(v)));
  });
  root.append(shape("line", { class: "axis-line", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  const named = (axis) => axis.label + (axis.log ? " (log scale)" : "");
  if (x.label) {
    root.append(shape("text", { class: "axis-label", x: (box.left + box.right) / 2, y: height - 5, "text-anchor": "middle" }, named(x)));
  }
  if (y.label) root.append(shape("text", { class: "axis-label", x: 0, y: 12 }, named(y)));
  // Two strokes through the axis: it does not begin at 0.
  if (!y.log && (y.low > 0 || y.high < 0) && yTicks.length) {
    root.append(shape("path", { class: "break", d: `M${box.left - 5} ${box.bottom - 5}l10 -5m-10 9l10 -5` }, shape("title", {}, "The axis does not begin at 0.")));
  }
  const group = shape("g", {});
  root.append(group);
  return { root, group, px, py, box };
}

function path(points, px, py, steps) {
  let text = "";
  points.forEach(([x, y], i) => {
    if (i === 0) text += `M${px(x).toFixed(1)} ${py(y).toFixed(1)}`;
    else text += (steps ? `H${px(x).toFixed(1)}V` : `L${px(x).toFixed(1)} `) + py(y).toFixed(1);
  });
  return text;
}

function color(index) {
  return `var(--${["blue", "vermilion", "green", "orange", "purple", "sky"][index % 6]})`;
}

// One pattern per colour, so that lines are distinct in gray too; kind: "c0" to "c5".
const DASHES = { c1: "7 3", c2: "2 3", c3: "9 3 2 3", c4: "12 3", c5: "5 2 2 2 2 2" };

// names: [name, kind, mark]; mark "line" unless it is "dot" or "cross".
function legend(names) {
  const sign = (kind, mark) => (mark === "line" || !mark
    ? shape("line", { x1: 1, x2: 25, y1: 4, y2: 4, stroke: "currentColor", "stroke-width": 2.5, "stroke-dasharray": DASHES[kind] }) : dotAt(13, 4, 3.5, mark === "cross"));
  return el("div", { class: "legend" }, names.map(([name, kind, mark]) => el("span", { class: kind },
    shape("svg", { width: 26, height: 8, "aria-hidden": "true" }, sign(kind, mark)), el("b", {}, name))));
}

// A dot, or a cross that is told from it without colour.
function dotAt(x, y, r, cross) {
  if (!cross) return shape("circle", { cx: x, cy: y, r, fill: "currentColor" });
  return shape("path", { d: `M${x - r} ${y - r}L${x + r} ${y + r}M${x - r} ${y + r}L${x + r} ${y - r}`, stroke: "currentColor", "stroke-width": 1.8, fill: "none" });
}

// A box for a bar of width `fraction`.
function track(fraction, className) {
  const fill = el("span", { class: "fill " + (className || "") });
  fill.style.width = (100 * Math.min(1, Math.max(0, fraction))).toFixed(2) + "%";
  return el("span", { class: "track" }, fill);
}
