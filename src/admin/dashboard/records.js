// Unknown outcomes and keys in flight; to settle one or forget it, asked for twice.

import { purge, resolve } from "./api.js";
import { by, count, el, isNew, replace, span } from "./elements.js";

/** How far the proxy's clock is ahead of this machine's, in milliseconds. */
let ahead = 0;
let refresh = async () => {};
let chosen = null;
let toasting;

const age = (since) => span((Date.now() + ahead - Date.parse(since)) / 1000);

const aging = (since) => el("td", { class: "number", "data-since": since, "data-name": "for" }, age(since));

/** Brings the ages on the page up to date. */
export function aged() {
  for (const cell of document.querySelectorAll("[data-since]")) cell.textContent = age(cell.dataset.since);
}

const name = (row) => el("th", { scope: "row", class: "mono", title: row.id }, row.id.slice(0, 16));
const route = (row) => el("td", { "data-name": "on" }, row.route);

function listing(place, { list, refused }, empty, caption, head, row) {
  if (!isNew(place, list?.records ?? refused)) return;
  if (refused !== undefined) {
    replace(place, el("p", { class: "notice notice-bad" }, el("span", {}, refused)));
  } else if (list.records.length === 0) {
    replace(place, el("p", { class: "none" }, empty));
  } else {
    replace(place,
      el("div", { class: "scroll" }, el("table", { class: "records" }, el("caption", { class: "hidden" }, caption),
        el("thead", {}, el("tr", {}, head.map(([text, kind]) => el("th", { scope: "col", class: kind }, text)))),
        el("tbody", {}, list.records.map(row)))),
      list.truncated ? el("p", { class: "hint" }, `These are the latest ${count(list.records.length)}; idem-proxy records list has all of them.`) : null);
  }
}

const unknownRow = (row) => el("tr", {},
  name(row), route(row), aging(row.started_at),
  el("td", { class: "do" },
    el("button", { type: "button", "data-focus": `settle-${row.id}`, "aria-label": `Settle ${row.id.slice(0, 16)}`, onclick: () => openResolve(row) }, "Settle…"),
    el("button", { type: "button", "data-focus": `forget-${row.id}`, "aria-label": `Forget ${row.id.slice(0, 16)}`, onclick: () => openPurge(row) }, "Forget…")));

const runningRow = (row) => el("tr", {}, name(row), route(row), aging(row.started_at));

/** Both lists. */
export function showRecords(now, unknown, running) {
  ahead = Date.parse(now.now) - Date.now();
  listing(by("unknown"), unknown, "None. Every call that was made has an answer.", "Records whose outcome is unknown",
    [["record"], ["route"], ["for", "number"], ["", "do"]], unknownRow);
  listing(by("running"), running, "None at the moment.", "Records under which a call runs", [["record"], ["route"], ["for", "number"]], runningRow);
}

function toast(text) {
  clearTimeout(toasting);
  by("toast").textContent = text;
  by("toast").hidden = false;
  toasting = setTimeout(() => { by("toast").hidden = true; }, 6_000);
}

const about = (row) => `Record ${row.id.slice(0, 16)} on route ${row.route}, begun ${age(row.started_at)} ago (${row.started_at}).`;

function openResolve(row) {
  chosen = row;
  by("resolve-form").reset();
  by("resolve-about").textContent = about(row);
  by("resolve-error").textContent = "";
  choose();
  by("resolve").showModal();
}

function openPurge(row) {
  chosen = row;
  by("purge-about").textContent = about(row);
  by("purge-error").textContent = "";
  by("purge").showModal();
}

const outcome = () => new FormData(by("resolve-form")).get("outcome");

/** Says by the button what it will do. */
function choose() {
  const wanted = outcome();
  by("resolve-answer").hidden = wanted !== "complete";
  by("resolve-warning").hidden = wanted !== "release";
  const go = by("resolve-go");
  go.disabled = wanted === null;
  go.className = wanted === "release" ? "danger" : "primary";
  go.textContent = { release: "Free the key: let it run again", complete: "Keep this answer" }[wanted] ?? "Choose what happened";
}

/** What the form says, as the API wants it. */
function wanted() {
  if (outcome() === "release") return { outcome: "release" };
  const document = { outcome: "complete", status: Number(by("status").value), body: by("body").value };
  const type = by("content-type").value.trim();
  if (type !== "" && document.body !== "") document.headers = { "Content-Type": type };
  return document;
}

/** Does it once, however often it is asked for, and says how it went. */
async function act(dialog, work, done) {
  const go = by(`${dialog}-go`);
  const error = by(`${dialog}-error`);
  if (go.getAttribute("aria-busy") === "true") return;
  go.setAttribute("aria-busy", "true");
  go.disabled = true;
  error.textContent = "";
  try {
    await work();
    by(dialog).close();
    toast(done);
    by("unknown-title").closest("section").querySelector("button")?.focus();
  } catch (refused) {
    error.textContent = refused.message;
  } finally {
    go.removeAttribute("aria-busy");
    go.disabled = false;
  }
  await refresh();
}

/** Once, when the page is there. */
export function prepareDialogs(again) {
  refresh = again;
  by("resolve-form").addEventListener("change", choose);
  by("resolve-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const row = chosen;
    const free = outcome() === "release";
    act("resolve", () => resolve(row.id, wanted()),
      free ? "The key is free: the next request with it is executed." : "Kept: retries get this answer from now on.");
  });
  by("purge-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const row = chosen;
    act("purge", () => purge(row.id), "Forgotten: the next request with this key is executed.");
  });
  for (const button of document.querySelectorAll("[data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
}
