// The panel for models that transcribe, and speech as text of a message.

import * as composer from "../composer.js";
import { byId, copyButton, iconButton, make, showProblem } from "../dom.js";
import { t } from "../i18n.js";
import { oneAtATime } from "../work.js";
import { hasMicrophone, record, transcribe } from "./hearing.js";

let dictate; // the button at the message
let model = ""; // the name of a model that transcribes

export function start() {
  const run = oneAtATime(byId("transcribe-stop"), byId("transcribe-state"));
  const shown = (file, name) => run((signal) => showTranscript(file, name, signal));
  byId("record").addEventListener("click", recorded(byId("record"), shown, (now) => (byId("record").textContent = now ? t("Stop recording") : t("Record"))));
  byId("record").disabled = !hasMicrophone();
  if (!hasMicrophone()) byId("record").title = t("Browsers allow the microphone on https pages and localhost only.");
  byId("audio-file").addEventListener("change", (event) => {
    const [file] = event.target.files;
    if (file) shown(file, file.name);
    event.target.value = "";
  });
  dictate = iconButton("microphone", t("Dictate"), null);
  dictate.id = "dictate";
  dictate.addEventListener("click", recorded(dictate, hear));
  composer.addButton(dictate);
}

export function setModels(models) {
  model = models.find(({ task }) => task === "speech2text")?.id || "";
  dictate.hidden = !model || !hasMicrophone();
  composer.takeFiles("audio/", model && hear);
}

// The microphone from one press of a button to the next. done: gets the file and its name.
function recorded(button, done, changed = () => {}) {
  let stop = null; // promises the end of the recording: a second press may come while the browser asks for the microphone
  button.setAttribute("aria-pressed", "false");
  const toggle = async () => {
    const ended = stop;
    stop = ended ? null : record();
    try {
      await stop;
    } catch (error) {
      stop = null;
      throw error;
    } finally {
      button.setAttribute("aria-pressed", String(Boolean(stop)));
      changed(Boolean(stop));
    }
    if (ended) await done(await (await ended)(), "recording.wav");
  };
  return () => toggle().catch((error) => showProblem(error.message));
}

const hear = (file, name) => composer.write((show) => transcribe(file, name, { model }, show));

async function showTranscript(file, name, signal) {
  const text = make("p", { className: "body" });
  byId("transcript").replaceChildren(text);
  const fields = { model: byId("model").value, language: byId("audio-language").value.trim() };
  await transcribe(file, name, fields, (heard) => (text.textContent = heard), { translate: byId("translate").checked, signal });
  byId("transcript").append(copyButton(() => text.textContent));
}
