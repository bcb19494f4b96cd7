// The dashboard: asks the API every two seconds, and hands what it says to the parts of the page.

import { Gone, Refused, hasToken, history, policy, records, setToken, status } from "./api.js";
import { by, el, isNew, replace, span } from "./elements.js";
import { showAttention, showPath } from "./overview.js";
import { showPolicy } from "./policy.js";
import { aged, prepareDialogs, showRecords } from "./records.js";
import { showTraffic } from "./traffic.js";

const EVERY_MS = 2_000;
const REASONS = {
  starting: "starting",
  draining: "draining",
  "store-unavailable": "the store does not answer",
};

let timer;
let lastSeen = null;
let digest = null;
let rounds = 0;

function pill(kind, text) {
  const place = by("state");
  if (isNew(place, [kind, text])) replace(place, el("span", { class: `pill pill-${kind}` }, text));
}

function showState(now) {
  if (now.ready) pill("good", "ready");
  else if (now.reasons.includes("draining")) pill("warn", "draining");
  else pill("bad", `not ready: ${now.reasons.map((reason) => REASONS[reason] ?? reason).join(", ")}`);
  const facts = [["version", now.version], ["up", span(now.uptime_s)], ["policy", now.policy_digest.slice(0, 8)]];
  const place = by("facts");
  if (isNew(place, facts)) {
    replace(place, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: "mono" }, value))));
  }
  by("sign-out").hidden = !hasToken();
}

function signIn(error) {
  pill("quiet", "locked");
  by("board").hidden = true;
  by("facts").replaceChildren();
  by("sign-out").hidden = true;
  by("gone").hidden = true;
  by("sign-in-error").textContent = error ?? "";
  if (by("sign-in").hidden) {
    by("sign-in").hidden = false;
    by("token").focus();
  } else if (error) {
    by("token").select();
  }
}

function gone(why) {
  pill("bad", "no connection");
  document.body.classList.add("stale");
  const since = lastSeen === null ? "" : ` It was last seen ${span((Date.now() - lastSeen) / 1000)} ago; what is below is from then.`;
  by("gone").textContent = `${why}${since} Trying again every two seconds.`;
  by("gone").hidden = false;
}

function back() {
  lastSeen = Date.now();
  document.body.classList.remove("stale");
  by("gone").hidden = true;
  by("sign-in").hidden = true;
  by("sign-in-error").textContent = "";
  by("board").hidden = false;
}

/** A list of records; a store that does not answer is no reason to show nothing else. */
async function list(state) {
  try {
    return { list: await records(state) };
  } catch (error) {
    if (error instanceof Refused && error.status !== 401) return { refused: error.message };
    throw error;
  }
}

async function round() {
  const [now, past, unknown, running] = await Promise.all([status(), history(), list("unknown"), list("in-flight")]);
  // The policy changes with its digest alone.
  const rules = digest === now.policy_digest ? null : await policy();
  back();
  showState(now);
  showPath(now);
  showAttention(now, past);
  showTraffic(past);
  showRecords(now, unknown, running);
  if (rules !== null) {
    showPolicy(rules);
    digest = now.policy_digest;
  }
}

export async function refresh() {
  clearTimeout(timer);
  const own = ++rounds;
  try {
    await round();
  } catch (error) {
    if (error instanceof Refused && error.status === 401) {
      const wrong = hasToken() ? "This is not the token of this proxy." : null;
      setToken(null);
      signIn(wrong);
      return;
    }
    if (error instanceof Gone || error instanceof Refused) gone(error.message);
    else throw error;
  } finally {
    // A round that another one has overtaken leaves the next one to that.
    if (own === rounds && by("sign-in").hidden) timer = setTimeout(refresh, EVERY_MS);
  }
}

by("sign-in-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = by("token");
  const given = field.value.trim();
  if (given === "") return;
  if (!/^[\x21-\x7e]+$/.test(given)) {
    signIn("A token has no spaces and no letters beyond ASCII.");
    return;
  }
  setToken(given);
  refresh().then(() => {
    if (hasToken()) {
      field.value = "";
      by("main").focus();
    }
  });
});

by("sign-out").addEventListener("click", () => {
  // What was shown goes too.
  location.reload();
});

prepareDialogs(refresh);
setInterval(aged, 1_000);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && by("sign-in").hidden) refresh();
});
refresh();
