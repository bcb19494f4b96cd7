// Requests a second by outcome, drawn; the hit ratio; latencies.

import { by, count, el, isNew, rate, replace, svg, table, took } from "./elements.js";

const MINUTES = 15;
const HEIGHT = 220;
const [LEFT, RIGHT, TOP, BOTTOM] = [38, 4, 8, 24];

/** What belongs together, from the bottom of the drawing up. */
const GROUPS = [
  { key: "executed", name: "executed", of: ["miss", "released"] },
  { key: "replayed", name: "replayed", of: ["hit", "joined"] },
  { key: "passed", name: "passed through", of: ["unkeyed", "bypass", "passthrough", "passthrough_keyed"] },
  {
    key: "refused", name: "refused",
    of: ["conflict", "mismatch", "unknown", "not_retained", "expired", "key_missing", "key_invalid", "caller_missing", "too_large", "bad_request"],
  },
  { key: "failed", name: "failed", of: ["upstream_failure", "store_failure", "no_store", "overloaded"] },
];

let last = null;
let live = new Map();
let drawn = null;
let pointed = null;

const sum = (requests, outcomes) => outcomes.reduce((total, name) => total + (requests[name] ?? 0), 0);

/** Rates since the last time that was asked, by outcome. */
function measure(totals) {
  const at = performance.now() / 1000;
  if (last !== null && at - last.at > 0.5) {
    const rates = new Map();
    for (const [name, own] of Object.entries(totals)) rates.set(name, Math.max(0, own - (last.totals[name] ?? 0)) / (at - last.at));
    live = rates;
  }
  if (last === null || at - last.at > 0.5) last = { at, totals };
}

const liveOf = (outcomes) => outcomes.reduce((total, name) => total + (live.get(name) ?? 0), 0);

/** The least of 1, 2, 4, 6, 8 times a power of ten that is not below. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return power * [1, 2, 4, 6, 8, 10].find((step) => step * power >= Math.max(value, 1));
}

function points(past) {
  return past.intervals.filter((own) => own.for_s > 0).map((own) => ({
    ago: own.ago_s + own.for_s / 2,
    rates: GROUPS.map((group) => sum(own.requests, group.of) / own.for_s),
  }));
}

function draw() {
  if (drawn === null) return;
  const place = by("chart");
  const width = Math.max(240, place.clientWidth);
  const { list } = drawn;
  const top = nice(Math.max(0, ...list.map((own) => own.rates.reduce((a, b) => a + b, 0))));
  const x = (ago) => width - RIGHT - (ago / (MINUTES * 60)) * (width - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
  const lines = [0, 0.5, 1].map((part) => [
    svg("line", { class: part === 0 ? "base" : "grid", x1: LEFT, x2: width - RIGHT, y1: y(part * top), y2: y(part * top) }),
    svg("text", { x: LEFT - 8, y: y(part * top) + 4, "text-anchor": "end" }, top * part < 1 ? String(top * part) : count(top * part)),
  ]);
  const times = (width < 480 ? [15, 0] : [15, 10, 5, 0]).map((ago) =>
    svg("text", { x: x(ago * 60), y: HEIGHT - 5, "text-anchor": ago === 15 ? "start" : ago === 0 ? "end" : "middle" }, ago === 0 ? "now" : `${ago} min ago`));
  const below = list.map(() => 0);
  const areas = list.length < 2 ? [] : GROUPS.map((group, index) => {
    const floor = list.map((own, at) => `${x(own.ago).toFixed(1)},${y(below[at]).toFixed(1)}`);
    list.forEach((own, at) => { below[at] += own.rates[index]; });
    const roof = list.map((own, at) => `${x(own.ago).toFixed(1)},${y(below[at]).toFixed(1)}`);
    return svg("polygon", { class: `area area-${group.key}`, points: [...roof, ...floor.reverse()].join(" ") });
  });
  const happened = list.some((own) => own.rates.some((value) => value > 0));
  const near = pointed === null || list.length === 0 ? null : list[Math.min(pointed, list.length - 1)];
  const cursor = near ? [svg("line", { class: "cursor", x1: x(near.ago), x2: x(near.ago), y1: TOP, y2: HEIGHT - BOTTOM })] : [];
  const label = happened ? `Requests a second by outcome, at most ${rate(Math.max(...below))}. Left and right arrows read single moments; the table below has the numbers.` : "No requests in the last 15 minutes.";
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label, tabindex: "0", "data-focus": "chart" }, lines, times, areas, cursor);
  drawing.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") pointed = null;
    else if (step && list.length > 0) pointed = Math.max(0, Math.min(list.length - 1, (pointed ?? list.length) + step));
    else return;
    event.preventDefault();
    draw();
  });
  replace(place, drawing, near ? tip(near, x(near.ago), width) : null,
    happened ? null : el("p", { class: "empty" }, list.length < 2 ? "Counting. The first samples are there in a few seconds." : "No requests in the last 15 minutes."));
}

function tip(near, at, width) {
  const rows = GROUPS.map((group, index) => [group, near.rates[index]]).filter(([, value]) => value > 0).reverse();
  const minutes = Math.floor(near.ago / 60);
  const seconds = Math.round(near.ago % 60);
  const own = el("ul", { class: "tip", role: "status" },
    el("li", { class: "hint" }, `${minutes > 0 ? `${minutes} min ` : ""}${seconds} s ago`),
    rows.length === 0 ? el("li", {}, "no requests") : rows.map(([group, value]) =>
      el("li", {}, el("span", { class: `swatch swatch-${group.key}` }), group.name, el("span", { class: "value" }, `${rate(value)}/s`))));
  if (at > width / 2) own.style.right = `${width - at + 10}px`;
  else own.style.left = `${at + 10}px`;
  return own;
}

by("chart").addEventListener("pointermove", (event) => {
  if (drawn === null || drawn.list.length === 0) return;
  const box = by("chart").getBoundingClientRect();
  const ago = ((box.right - RIGHT - event.clientX) / (box.width - LEFT - RIGHT)) * MINUTES * 60;
  const far = (own) => Math.abs(own.ago - ago);
  const next = drawn.list.reduce((best, own, at) => (far(own) < far(drawn.list[best]) ? at : best), 0);
  if (next !== pointed) {
    pointed = next;
    draw();
  }
});
by("chart").addEventListener("pointerleave", () => { pointed = null; draw(); });
new ResizeObserver(() => draw()).observe(by("chart"));

function showRatio(requests) {
  const place = by("ratio");
  const [replayed, executed] = [sum(requests, GROUPS[1].of), sum(requests, GROUPS[0].of)];
  if (!isNew(place, [replayed, executed])) return;
  const keyed = replayed + executed;
  if (keyed === 0) {
    replace(place, el("p", { class: "figure" }, "–"), el("p", { class: "hint" }, "No request with a key was executed or replayed in the last 15 minutes."));
    return;
  }
  const share = replayed / keyed;
  replace(place,
    el("p", { class: "figure" }, `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`),
    el("div", { class: "bar", "aria-hidden": "true" }, svg("svg", {}, svg("rect", { width: `${share * 100}%`, height: "100%" }))),
    el("p", { class: "hint" }, `${count(replayed)} replayed or joined, ${count(executed)} executed, in the last 15 minutes`));
}

function showLatency(latency) {
  const place = by("latency");
  if (!isNew(place, latency)) return;
  by("latency-span").textContent = `the last ${Math.max(1, Math.round(latency.over_s / 60))} min, estimated from histograms`;
  const row = (name, own) => [name, took(own.p50_s), took(own.p90_s), took(own.p99_s), count(own.count)];
  table(place, "Latency percentiles", ["", "p50", "p90", "p99", "requests"],
    [row("hit", latency.hit), row("miss", latency.miss), row("pass-through", latency.passthrough)]);
}

/** All of it. */
export function showTraffic(past) {
  measure(past.totals.requests);
  const lately = {};
  for (const own of past.intervals) {
    for (const [name, number] of Object.entries(own.requests)) lately[name] = (lately[name] ?? 0) + number;
  }
  by("rate").textContent = rate(liveOf([...live.keys()]));
  const legend = by("legend");
  const rates = GROUPS.map((group) => rate(liveOf(group.of)));
  if (isNew(legend, rates)) {
    replace(legend, GROUPS.map((group, index) =>
      el("li", {}, el("span", { class: `swatch swatch-${group.key}` }), group.name, el("span", { class: "value" }, rates[index]))));
  }
  const ever = Object.keys(past.totals.requests);
  const rows = GROUPS.flatMap((group) => group.of.filter((name) => ever.includes(name)).map((name) =>
    [el("span", {}, el("code", {}, name), ` ${group.name}`), rate(live.get(name) ?? 0), count(lately[name] ?? 0), count(past.totals.requests[name])]));
  if (isNew(by("outcomes"), rows.map((row) => [row[0].textContent, ...row.slice(1)]))) {
    table(by("outcomes"), "Requests by outcome", ["outcome", "a second", "15 min", "since start"], rows.length > 0 ? rows : [["none yet", "", "", ""]]);
  }
  drawn = { list: points(past) };
  draw();
  showRatio(lately);
  showLatency(past.latency);
}
