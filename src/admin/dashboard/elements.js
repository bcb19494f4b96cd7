// Elements out of text: whatever the server says is put in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/** The element of this id; it is in the page. */
export const by = (id) => document.getElementById(id);

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, String(value));
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return made;
}

/** An element; attributes that begin with "on" are listeners. */
export const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);

/** An element of a drawing. */
export const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

/** Puts these in the place of what is in it, and the focus back on what has the same `data-focus`. */
export function replace(place, ...children) {
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
  place.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  if (focused) [...place.querySelectorAll("[data-focus]")].find((own) => own.dataset.focus === focused)?.focus();
}

const shown = new WeakMap();

/** Whether this place shows something else than `data`; from now on it counts as showing that. */
export function isNew(place, data) {
  const text = JSON.stringify(data);
  if (shown.get(place) === text) return false;
  shown.set(place, text);
  return true;
}

/** A rate, with as many digits as it is worth. */
export function rate(value) {
  if (value === 0) return "0";
  if (value < 0.05) return "<0.1";
  return value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString("en");
}

/** A number of things. */
export const count = (value) => value.toLocaleString("en");

/** A time that something took, in seconds. */
export function took(seconds) {
  if (seconds === null) return "–";
  if (seconds < 0.001) return `${Math.max(1, Math.round(seconds * 1e6))} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
}

/** A span of time, in seconds, in its two largest units. */
export function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  const two = (large, small) => (small.startsWith("0 ") ? large : `${large} ${small}`);
  if (days > 0) return two(`${days} d`, `${hours} h`);
  if (hours > 0) return two(`${hours} h`, `${minutes} min`);
  return minutes > 0 ? two(`${minutes} min`, `${whole % 60} s`) : `${whole} s`;
}

/** A size in bytes. */
export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let value = bytes / 1024;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(value < 10 ? 1 : 0)} ${units[unit]}`;
}

/** A table: the head's texts, and rows of cells. */
export function table(place, caption, head, rows) {
  const cell = (text, index) => el("th", { scope: "col", class: index > 0 ? "number" : null }, text);
  const row = ([first, ...rest]) =>
    el("tr", {}, el("th", { scope: "row" }, first), rest.map((text) => el("td", { class: "number" }, text)));
  replace(place, el("caption", { class: "hidden" }, caption), el("thead", {}, el("tr", {}, head.map(cell))), el("tbody", {}, rows.map(row)));
}
