// The proxy's API. The token is kept here, in memory, and nowhere else.

let token = null;

/** The proxy cannot be reached, or did not answer in time. */
export class Gone extends Error {}

/** The API refuses; `status` says how. */
export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export const setToken = (next) => { token = next; };
export const hasToken = () => token !== null;

const PATIENCE_MS = 10_000;

async function call(method, path, document) {
  const headers = {};
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  if (document !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  let text;
  try {
    answer = await fetch(`/api/v1${path}`, {
      method, headers, body: document === undefined ? undefined : JSON.stringify(document),
      cache: "no-store", credentials: "omit", redirect: "error", signal: AbortSignal.timeout(PATIENCE_MS),
    });
    text = await answer.text();
  } catch {
    throw new Gone("The proxy does not answer.");
  }
  let told = null;
  try {
    told = text === "" ? null : JSON.parse(text);
  } catch {
    throw new Gone("What answers here is not this proxy.");
  }
  if (!answer.ok) throw new Refused(answer.status, told?.detail ?? told?.title ?? `Status ${answer.status}`);
  return told;
}

export const status = () => call("GET", "/status");
export const history = () => call("GET", "/history");
export const policy = () => call("GET", "/policy");
export const records = (state) => call("GET", `/records?state=${encodeURIComponent(state)}&limit=50`);
export const resolve = (id, document) => call("POST", `/records/${id}/resolve`, document);
export const purge = (id) => call("DELETE", `/records/${id}`);
