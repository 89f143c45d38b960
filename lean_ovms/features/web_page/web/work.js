// The requests of a panel: one at a time, with a button that stops it and a line that says that it is in work.

import { explain } from "./api.js";
import { showProblem } from "./dom.js";
import { t } from "./i18n.js";

// Returns a function that runs a request, which gets an AbortSignal, and ends the one before.
export function oneAtATime(stop, state) {
  let running = null;
  const show = (now) => {
    stop.disabled = !now;
    state.textContent = now ? t("Working…") : "";
  };
  stop.addEventListener("click", () => running?.abort());
  return async (request) => {
    running?.abort();
    const mine = (running = new AbortController());
    show(true);
    try {
      await request(mine.signal);
      showProblem("");
    } catch (error) {
      if (error.name !== "AbortError") showProblem(explain(error));
    }
    if (running !== mine) return;
    running = null;
    show(false);
  };
}
