// What a link to the page holds after its #: position of the slider, run, theme and the input that is tried.

// "#cut=3&run=1" as an object; anything else, such as the name of a section, is no state.
function readState(hash) {
  const text = hash.replace(/^#/, "");
  return text.includes("=") ? Object.fromEntries(new URLSearchParams(text)) : {};
}

function writeState(state) {
  return "#" + new URLSearchParams(Object.entries(state).filter(([, value]) => value !== null && value !== undefined && value !== "")).toString();
}

// Bytes of a picture, or numbers of a row, as text of a link.
function encodeInput(input, isImage) {
  if (!input) return null;
  if (!isImage) return Array.from(input, (v) => Number(v.toPrecision(5))).join(",");
  return btoa(String.fromCharCode(...input)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

// The reverse; null where the text does not hold `size` numbers.
function decodeInput(text, isImage, size) {
  try {
    const values = isImage
      ? Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0))
      : Float32Array.from(text.split(","), Number);
    return values.length === size && values.every(Number.isFinite) ? values : null;
  } catch {
    return null;
  }
}
