// Numbers: unpacking arrays, writing numbers for people, and files to download.

const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i2: Int16Array, f4: Float32Array };

// A packed array as a typed one; data are little-endian, as every browser's machine is.
function unpack(packed) {
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new ARRAYS[packed.type](bytes.buffer);
}

// Places of the weights that are stored, from bytes as a bundle has them: each is the number of zeros before a weight; 255 is as many
// zeros and no weight.
function placesOf(gaps) {
  const places = [];
  let at = 0;
  for (const gap of gaps) {
    at += gap;
    if (gap < 255) places.push(at++);
  }
  return Uint32Array.from(places);
}

function percent(fraction, digits) {
  if (fraction === null || fraction === undefined) return "–";
  const value = 100 * fraction;
  if (digits !== undefined) return value.toFixed(digits) + "\u00a0%";
  const rest = value > 90 && value < 100 ? 100 - value : Math.abs(value);
  if (rest < 1e-6) return value.toFixed(0) + "\u00a0%";
  const decimals = Math.min(4, Math.max(0, 1 - Math.floor(Math.log10(rest) + 1e-12)));
  return value.toFixed(decimals) + "\u00a0%";
}

// Text whose numbers stay on the line of their unit.
function bound(text) {
  return text.replace(/(\d) (%|kB|MB|µs|ms)/g, "$1\u00a0$2");
}

function count(n) {
  return n === null || n === undefined ? "–" : Math.round(n).toLocaleString("en-GB");
}

function bytes(n) {
  if (n === null || n === undefined) return "–";
  if (n < 1000) return n.toFixed(0) + "\u00a0B";
  if (n < 1e6) return (n / 1e3).toFixed(1) + "\u00a0kB";
  return (n / 1e6).toFixed(2) + "\u00a0MB";
}

function short(n) {
  if (n === null || n === undefined) return "–";
  const size = Math.abs(n);
  if (size < 1e4) return Number.isInteger(n) ? count(n).replace("-", "−") : number(n, 3);
  const text = size < 1e6 ? (n / 1e3).toFixed(1) + "\u00a0k" : (n / 1e6).toFixed(2) + "\u00a0M";
  return text.replace("-", "−");
}

function number(x, digits) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  const most = digits || 4;
  if (size >= 1e7 || size < 1e-4) return x.toExponential(1).replace("e+", "e").replace(/-/g, "−");
  if (size >= 10 ** (most - 1)) return count(x).replace("-", "−");
  return x.toPrecision(most).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "").replace("-", "−");
}

function milliseconds(ms) {
  if (ms === null || ms === undefined) return "–";
  return ms < 1 ? (1000 * ms).toPrecision(3) + "\u00a0µs" : ms.toPrecision(3) + "\u00a0ms";
}

// Rows of a table as text; a cell with a comma, quote or line break is quoted.
function csv(header, rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
  };
  return [header, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

// Round limits and steps of an axis: 1, 2 or 5 times a power of ten, about n of them.
function ticks(low, high, n) {
  const span = high - low || Math.abs(high) || 1;
  const raw = span / Math.max(1, n);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((item) => item * power >= raw) * power;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * span; k++) {
    found.push(Number((k * step).toPrecision(12)));
  }
  return found;
}

// At least three round numbers between the ends of a log axis: steps of each power of ten, ever finer; as a last resort an even axis' ticks.
function logTicks(low, high) {
  const [from, to] = [Math.min(low, high), Math.max(low, high)], span = to / from;
  const finer = [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7]];
  for (let k = span < 6 ? 3 : span < 50 ? 2 : span < 1000 ? 1 : 0; k < finer.length; k++) {
    const found = [];
    for (let p = Math.floor(Math.log10(from)); p <= Math.ceil(Math.log10(to)); p++) {
      for (const step of finer[k]) {
        const value = Number((step * 10 ** p).toPrecision(6));
        if (value >= from * 0.999 && value <= to * 1.001) found.push(value);
      }
    }
    if (found.length >= 3) return found;
  }
  return ticks(from, to, 4);
}
