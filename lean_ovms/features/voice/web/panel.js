// The panel for models that speak.

import { post } from "../api.js";
import { byId, make } from "../dom.js";
import { t } from "../i18n.js";
import { joined, toSamples, toWav } from "../sound.js";
import { oneAtATime } from "../work.js";

const RATE_OUT = 24000; // of response_format pcm
let chosen = {}; // the model, as /v1/models has it

export function start(readModels) {
  const run = oneAtATime(byId("speak-stop"), byId("speech-state"));
  byId("speak").addEventListener("click", () => run(async (signal) => {
    await speak(signal);
    if (!chosen.voices) await readModels(); // it has been loaded
  }));
}

export function choose(model) {
  chosen = model;
  const { voices } = model; // of one that has been loaded
  byId("voice").replaceChildren(...(voices?.voices || []).map((name) => make("option", { textContent: name })));
  byId("voice-field").hidden = !voices?.voices.length;
  byId("speed-field").hidden = !voices || voices.speed[0] === voices.speed[1];
  if (voices) [byId("speed").min, byId("speed").max] = voices.speed;
}

// Each sentence is played as it arrives.
async function speak(signal) {
  const request = { model: byId("model").value, input: byId("speak-text").value, response_format: "pcm", stream_format: "audio" };
  if (byId("voice").value) request.voice = byId("voice").value;
  if (!byId("speed-field").hidden && byId("speed").value) request.speed = Number(byId("speed").value);
  const began = performance.now();
  const answer = await post("v1/audio/speech", request, signal);
  const player = new AudioContext({ sampleRate: RATE_OUT });
  const close = () => player.state === "closed" || player.close(); // browsers have few of them
  signal.addEventListener("abort", close);
  const pieces = [];
  let [rest, at, first] = [new Uint8Array(), 0, 0];
  const reader = answer.body.getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    first ||= performance.now();
    const bytes = joined([rest, value]);
    const whole = bytes.subarray(0, bytes.length - (bytes.length % 2));
    rest = bytes.slice(whole.length);
    if (!whole.length) continue;
    pieces.push(whole);
    at = play(player, toSamples(whole), at);
  }
  setTimeout(close, 1000 * Math.max(0, at - player.currentTime) + 500); // when all has been played
  const sound = joined(pieces);
  const before = byId("speak-result").querySelector("audio");
  if (before) URL.revokeObjectURL(before.src);
  byId("speak-result").replaceChildren(
    make("audio", { controls: true, src: URL.createObjectURL(toWav(sound, RATE_OUT)), ariaLabel: t("Speech") }),
    make("p", { className: "cost", textContent: t("{n} s of speech · first after {ms} ms", { n: (sound.length / 2 / RATE_OUT).toFixed(1), ms: (first - began).toFixed(0) }) }),
  );
}

// Schedules samples after those before; returns when they end.
function play(player, samples, at) {
  const buffer = player.createBuffer(1, samples.length, RATE_OUT);
  buffer.copyToChannel(samples, 0);
  const source = new AudioBufferSourceNode(player, { buffer });
  source.connect(player.destination);
  const starts = Math.max(at, player.currentTime + 0.05);
  source.start(starts);
  return starts + buffer.duration;
}
