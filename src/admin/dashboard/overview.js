// What is in front of what, and what an operator should look at.

import { by, count, el, isNew, replace, size, span } from "./elements.js";

const LOOKS = {
  untried: () => "not called yet",
  reachable: (upstream) => `reachable for ${span(upstream.for_s)}`,
  unreachable: (upstream) => `unreachable for ${span(upstream.for_s)} (${upstream.reason})`,
};

const KEPT = { none: "no store", memory: "in memory", disk: "on disk", redis: "in Redis" };

const address = (text) => el("p", { class: "addr mono" }, text);
const hint = (text) => el("p", { class: "hint" }, text);

/** Clients, this proxy, upstreams. */
export function showPath(now) {
  const place = by("path");
  const connections = now.limits.max_connections;
  const data = [now.listeners, now.store, now.upstreams, connections];
  if (!isNew(place, data)) return;
  const most = connections?.configured === undefined ? "" : `, lowered from ${count(connections.configured)} by the limit of open files`;
  const open = connections ? [hint(`${count(connections.level)} of ${count(connections.max)} connections${most}`)] : [];
  const { store } = now;
  const records = `${count(store.records)} ${store.records === 1 ? "record" : "records"}, ${size(store.bytes)}`;
  const kept = !store.answers && store.kind !== "none" ? "does not answer" : records;
  replace(
    place,
    el("div", { class: "node" }, el("h3", {}, "Clients come to"), now.listeners.clients.map(address), open),
    el("div", { class: "arrow", "aria-hidden": "true" }),
    el("div", { class: "node node-own" }, el("h3", {}, "idem-proxy keeps records"),
      el("p", { class: "addr" }, KEPT[store.kind] ?? store.kind), hint(store.kind === "none" ? "Nothing is protected." : kept)),
    el("div", { class: "arrow", "aria-hidden": "true" }),
    el("div", { class: "node" }, el("h3", {}, now.upstreams.length === 1 ? "Upstream" : "Upstreams"),
      now.upstreams.map((upstream) => [
        address(upstream.address),
        hint(`${upstream.name ? `${upstream.name}, ` : ""}${LOOKS[upstream.state]?.(upstream) ?? upstream.state}`),
      ])),
  );
}

const some = (number, one, many) => (number === 1 ? `1 ${one}` : `${count(number)} ${many}`);

/** What is wrong now or went wrong lately: how bad, in which words, and where the runbook speaks of it. */
function troubles(now, past) {
  const { counts } = past.trouble;
  const lately = past.trouble.over_s < 60 ? "in the last minute" : `in the last ${Math.round(past.trouble.over_s / 60)} min`;
  const found = [];
  const add = (kind, text, section) => found.push({ kind, text, section });
  if (now.store.kind !== "none" && !now.store.answers) {
    add("bad", "The store does not answer. Requests with a key are refused, or pass unprotected, as on_store_failure says.", "Problems");
  }
  for (const upstream of now.upstreams) {
    if (upstream.state === "unreachable") {
      add("bad", `The upstream ${upstream.address} could not be reached when it was tried last.`, "502 and 504");
    }
  }
  if (counts.unknown > 0) {
    add("warn", `${some(counts.unknown, "call", "calls")} ended without an answer ${lately}. Those still listed below wait for somebody to say what happened.`, "A stuck key");
  }
  if (counts.claims_lost > 0) {
    add("bad", `${some(counts.claims_lost, "claim was", "claims were")} lost while a call ran, ${lately}. Those writes may have been executed twice.`, "A stuck key");
  }
  if (counts.evicted > 0) {
    add("bad", `${some(counts.evicted, "record was", "records were")} dropped for want of room ${lately}. A retry of those runs the write again: give the store more room.`, "Memory");
  }
  if (counts.store_full > 0) {
    add("bad", `The store had no room for ${some(counts.store_full, "operation", "operations")} ${lately}.`, "Memory");
  }
  if (counts.store_failures > 0) {
    add("warn", `The store failed ${some(counts.store_failures, "operation", "operations")} ${lately}.`, "Problems");
  }
  return found;
}

/** The troubles, or that there are none. */
export function showAttention(now, past) {
  const place = by("attention");
  const found = troubles(now, past);
  // The span alone is no news.
  if (!isNew(place, [found.map((own) => [own.kind, own.section]), past.trouble.counts])) return;
  if (found.length === 0) {
    replace(place, el("p", { class: "notice notice-good" }, el("span", {}, "Nothing needs you.")));
    return;
  }
  replace(place, found.map((own) =>
    el("p", { class: `notice notice-${own.kind}` }, el("span", {}, own.text), el("span", { class: "see" }, `operations.md: “${own.section}”`))));
}
