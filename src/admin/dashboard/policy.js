// The policy in effect on each route.

import { by, el, replace } from "./elements.js";

const KEYS = { required: "a key is required", optional: "a key is optional", off: "no keys", derived: "the request is its own key" };

function text(value) {
  if (Array.isArray(value)) return value.length === 0 ? "none" : value.map(text).join(", ");
  if (value !== null && typeof value === "object") return Object.entries(value).map(([name, own]) => `${name} = ${text(own)}`).join(", ");
  if (value === "") return "none";
  return value === true ? "yes" : value === false ? "no" : String(value);
}

/** The rules, with those of a table below it one by one. */
function rules(route) {
  const { name, methods, path, ...rest } = route;
  return Object.entries(rest).flatMap(([key, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? Object.entries(value).map(([below, own]) => [`${key}.${below}`, own])
      : [[key, value]]);
}

function shown(route) {
  const brief = [KEYS[route.key] ?? route.key, route.dialect, route.key === "off" ? null : `kept ${route.retention}`].filter(Boolean).join(" · ");
  return el("details", { class: "route" },
    el("summary", { "data-focus": `route-${route.name}` }, el("strong", {}, route.name),
      el("span", { class: "what mono" }, `${(route.methods ?? []).join(" ") || "any method"} ${route.path}`), el("span", { class: "brief" }, brief)),
    el("dl", { class: "rules" }, rules(route).map(([key, value]) =>
      el("div", {}, el("dt", { class: "mono" }, key), el("dd", {}, text(value))))));
}

/** All routes. */
export function showPolicy({ routes }) {
  replace(by("policy"), routes.length === 0
    ? el("p", { class: "none" }, "There are no routes: every request passes through without protection.")
    : routes.map(shown));
}
