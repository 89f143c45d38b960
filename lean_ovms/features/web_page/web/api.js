// Requests to this server, and to no other.

import { byId } from "./dom.js";
import { t } from "./i18n.js";

const KEY = "lean_ovms.key";

export const address = (path) => new URL(path, document.baseURI).href;
export const key = () => sessionStorage.getItem(KEY) || "";
const headers = (more = {}) => (key() ? { ...more, Authorization: "Bearer " + asBytes(key()) } : more);
const asBytes = (text) => String.fromCharCode(...new TextEncoder().encode(text)); // a header takes no other characters

// The form for the API key. It shows after the server has refused a request; entered: what to do with a new key.
export function startKey(entered) {
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, byId("key").value);
    byId("key-form").hidden = true;
    entered();
  });
}

function askForKey() {
  byId("key-note").textContent = key() ? t("The server refused this key.") : t("The server needs an API key.");
  byId("key-form").hidden = false;
  byId("key").focus();
}

// What went wrong by what the reader did, said as the reader is told.
export class Problem extends Error {
  get text() {
    return this.message;
  }
}

// retryAfter: seconds, 0 if the server named none.
class ServerError extends Problem {
  constructor(status, error, retryAfter = 0) {
    super(error.message || (typeof error === "string" ? error : "status " + status));
    this.status = status;
    this.retryAfter = retryAfter;
    this.field = error.param || "";
    this.code = error.code || "";
  }

  get text() {
    return this.field ? `${this.message} (field: ${this.field})` : this.message;
  }
}

async function failure(answer) {
  let error = {};
  try {
    error = (await answer.json()).error || {};
  } catch {
    error = { message: t("The server answered with status {status}.", { status: answer.status }) };
  }
  if (answer.status === 401) askForKey();
  return new ServerError(answer.status, error, Number(answer.headers.get("Retry-After")) || 0);
}

async function send(path, options) {
  const answer = await fetch(address(path), options);
  if (!answer.ok) throw await failure(answer);
  return answer;
}

export const get = async (path) => (await send(path, { headers: headers() })).json();
export const postForm = (path, body, signal) => send(path, { method: "POST", headers: headers(), body, signal });

export const post = (path, body, signal, method = "POST") =>
  send(path, { method, headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), signal });

// What a person reads of an error of these functions.
export const explain = (error) => (error instanceof Problem ? error.text : t("The connection was lost."));

// What this server can do by endpoints that not every server has: their paths by what they do.
let actions = {};

export async function readActions() {
  actions = await get("web/actions").catch(() => ({}));
}

export const pathOf = (action) => actions[action];

// Each line of a stream of JSON values. Throws ServerError for one that is an error.
export async function* lines(answer) {
  let rest = "";
  for await (const part of texts(answer)) {
    const found = (rest + part).split("\n");
    rest = found.pop();
    for (const line of found.filter(Boolean)) {
      const value = JSON.parse(line);
      if (value.error) throw new ServerError(500, value.error);
      yield value;
    }
  }
}

async function* texts(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let part; !(part = await reader.read()).done; ) yield part.value;
  } finally {
    await reader.cancel().catch(() => {});
  }
}

// The data of each server-sent event, parsed. Throws ServerError for an event with an error, and TypeError, as fetch does, for a
// stream that breaks off.
export async function* events(answer) {
  let rest = "";
  for await (const part of texts(answer)) {
    const found = (rest + part).split("\n");
    rest = found.pop();
    for (const line of found) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ServerError(event.error.code || 500, event.error);
      yield event;
    }
  }
  throw new TypeError("the stream has no end");
}
