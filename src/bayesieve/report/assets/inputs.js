// From what a reader draws or sets to the numbers the network reads.

// Lines of a drawing made thicker by n pixels on each side.
function thickened(ink, side, n) {
  const spread = (from, step, jump) => {
    const to = new Float32Array(from.length);
    for (let line = 0; line < side; line++) {
      for (let i = 0; i < side; i++) {
        let most = 0;
        for (let k = Math.max(0, i - n); k <= Math.min(side - 1, i + n); k++) most = Math.max(most, from[line * jump + k * step]);
        to[line * jump + i * step] = most;
      }
    }
    return to;
  };
  return spread(spread(ink, 1, side), side, 1);
}

// A drawing as training pictures are: of their size, in their place, with lines thick enough to have `least` ink.
function asTrained(ink, side, height, width, box, least) {
  let out = fitDrawing(ink, side, height, width, box);
  const mass = (values) => values.reduce((sum, v) => sum + v, 0);
  for (let n = 3; n <= 21 && mass(out) > 0 && mass(out) < least; n += 3) {
    out = fitDrawing(thickened(ink, side, n), side, height, width, box);
  }
  return out;
}

// A drawing, (side x side) ink between 0 and 1, brought to the size and place of the training
// pictures: its longer side becomes `box` pixels, and it is centred. Returns ink of height x width.
function fitDrawing(ink, side, height, width, box) {
  let top = side, bottom = -1, left = side, right = -1, mass = 0, sumRow = 0, sumColumn = 0;
  for (let r = 0; r < side; r++) {
    for (let c = 0; c < side; c++) {
      const v = ink[r * side + c];
      if (v < 0.05) continue;
      top = Math.min(top, r); bottom = Math.max(bottom, r);
      left = Math.min(left, c); right = Math.max(right, c);
      mass += v; sumRow += v * (r + 0.5); sumColumn += v * (c + 0.5);
    }
  }
  const out = new Float32Array(height * width);
  if (bottom < 0) return out;
  const step = Math.max(bottom - top + 1, right - left + 1, side / 8) / box;
  // Small drawings in a large frame are centred by their mass, as MNIST is; full ones by their box.
  const byMass = box < 0.9 * Math.max(height, width);
  const middleRow = byMass ? sumRow / mass : (top + bottom + 1) / 2;
  const middleColumn = byMass ? sumColumn / mass : (left + right + 1) / 2;
  const n = Math.max(1, Math.ceil(step));
  for (let i = 0; i < height; i++) {
    for (let j = 0; j < width; j++) {
      let sum = 0;
      for (let a = 0; a < n; a++) {
        const r = Math.floor(middleRow + (i - height / 2 + (a + 0.5) / n) * step);
        if (r < 0 || r >= side) continue;
        for (let b = 0; b < n; b++) {
          const c = Math.floor(middleColumn + (j - width / 2 + (b + 0.5) / n) * step);
          if (c >= 0 && c < side) sum += ink[r * side + c];
        }
      }
      out[i * width + j] = sum / (n * n);
    }
  }
  return out;
}

// Pixels, 0 to 1 in (C, H, W), as the network reads them.
function prepareImage(values, recipe) {
  const area = recipe.shape[1] * recipe.shape[2];
  return Float32Array.from(values, (v, i) => {
    const channel = Math.floor(i / area);
    return (v - recipe.mean[channel]) / recipe.std[channel];
  });
}

// Columns of a table, numbers or level names by column, as the network reads them.
function prepareRow(values, columns, size) {
  const x = new Float32Array(size);
  columns.forEach((column, k) => {
    const limit = column.limit ?? Infinity;
    if (column.kind === "numeric") x[column.at] = Math.min(limit, Math.max(-limit, (values[k] - column.mean) / column.std));
    else x[column.at + values[k]] = 1;
  });
  return x;
}

// The reverse: values by column of an input the network reads.
function readRow(x, columns) {
  return columns.map((column) => {
    if (column.kind === "numeric") return x[column.at] * column.std + column.mean;
    const item = column.levels.map((_, i) => x[column.at + i]);
    return item.indexOf(Math.max(...item));
  });
}

// A number of a column without what rounding left of a 0.
function nearZero(value, column) {
  return Math.abs(value) < (column.high - column.low) / 1000 ? 0 : value;
}

// A square to draw on with a pen, a finger or the arrow keys.
function drawingPad(onChange) {
  const side = 280;
  const canvas = el("canvas", {
    class: "pad", width: side, height: side, tabindex: 0, role: "application", id: "pad",
    "aria-label": "Draw here. With the keyboard: arrow keys move the pen, space sets it down or lifts it.",
  });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const pen = { x: side / 2, y: side / 2, down: false };
  let picture = false; // whether a picture of the data is shown: the first stroke replaces it
  const fresh = () => {
    if (picture) context.clearRect(0, 0, side, side);
    picture = false;
  };
  context.lineCap = context.lineJoin = "round";
  const stroke = (x, y) => {
    context.strokeStyle = "#fff";
    context.lineWidth = 22;
    context.beginPath();
    context.moveTo(pen.x, pen.y);
    context.lineTo(x + 0.01, y);
    context.stroke();
  };
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * side, ((event.clientY - box.top) / box.height) * side];
  };
  const ink = () => {
    const { data } = context.getImageData(0, 0, side, side);
    return Float32Array.from({ length: side * side }, (_, i) => data[4 * i + 3] / 255);
  };
  let queued = false;
  const changed = () => {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => { queued = false; onChange(ink(), side); });
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fresh();
    [pen.x, pen.y] = place(event);
    stroke(pen.x, pen.y);
    changed();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!event.buttons) return;
    const [x, y] = place(event);
    stroke(x, y);
    [pen.x, pen.y] = [x, y];
    changed();
  });
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    if (event.key === " ") { pen.down = !pen.down; fresh(); }
    else if (moves[event.key]) {
      const [dx, dy] = moves[event.key];
      const x = Math.max(0, Math.min(side, pen.x + 10 * dx)), y = Math.max(0, Math.min(side, pen.y + 10 * dy));
      if (pen.down) stroke(x, y);
      [pen.x, pen.y] = [x, y];
    } else return;
    event.preventDefault();
    if (pen.down) { stroke(pen.x, pen.y); changed(); }
  });
  const clear = () => {
    picture = false;
    context.clearRect(0, 0, side, side);
    Object.assign(pen, { x: side / 2, y: side / 2, down: false });
    changed();
  };
  // Shows a picture of the data in place of a drawing.
  const show = (values, height, width) => {
    picture = true;
    context.clearRect(0, 0, side, side);
    const small = document.createElement("canvas");
    small.width = width;
    small.height = height;
    const image = small.getContext("2d").createImageData(width, height);
    for (let i = 0; i < width * height; i++) image.data.set([255, 255, 255, 255 * values[i]], 4 * i);
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, side, side);
  };
  // Draws strokes of points between 0 and 1.
  const draw = (strokes) => {
    clear();
    for (const points of strokes) {
      [pen.x, pen.y] = points[0].map((v) => v * side);
      for (const [x, y] of points) {
        stroke(x * side, y * side);
        [pen.x, pen.y] = [x * side, y * side];
      }
    }
    changed();
  };
  return { canvas, clear, show, draw };
}
