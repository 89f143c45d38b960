// Requests to this server, and to no other.

import { byId } from "./dom.js";
import { t } from "./i18n.js";

const KEY = "lean_ovms.key";

export const address = (path) => new URL(path, document.baseURI).href;
export const key = () => sessionStorage.getItem(KEY) || "";
const headers = (more = {}) => (key() ? { ...more, Authorization: "Bearer " + key() } : more);

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

// retryAfter: seconds, 0 if the server named none.
class ServerError extends Error {
  constructor(status, error, retryAfter = 0) {
    super(error.message || "status " + status);
    this.status = status;
    this.retryAfter = retryAfter;
    this.field = error.param || "";
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

export const post = (path, body, signal) =>
  send(path, { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), signal });

// What a person reads of an error of these functions.
export const explain = (error) => (error instanceof ServerError ? error.text : t("The connection was lost."));

// The data of each server-sent event, parsed. Throws ServerError for an event with an error.
export async function* events(answer) {
  let rest = "";
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new ServerError(event.error.code || 500, event.error);
        yield event;
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
