"""Recordings for the tests: words of voices that the model was not trained on, with their times."""

from __future__ import annotations

import io
import json
import random
import wave
from pathlib import Path

import numpy as np

from .speech import RATE, UNHEARD, Samples, speak

TEXTS = (
    "no off",
    "up stop",
    "zero eight right off stop go stop",
    "on on three six on",
    "four yes",
    "three five seven eight four zero",
)
MOST_S = 4.6
NOISE = 1e-3

Times = list[tuple[str, float, float]]


def one(words: list[str], dice: random.Random) -> tuple[Samples, Times]:
    """Returns the audio of these words, and the times of those that fit."""
    voice, speed, pitch = "en-us" + dice.choice(UNHEARD), dice.randint(140, 190), dice.randint(35, 60)
    parts, times = [np.zeros(round(RATE * dice.uniform(0.05, 0.3)))], []
    at = len(parts[0])
    for word in words:
        clip = speak(voice, speed, pitch, word)
        if at + len(clip) > RATE * MOST_S:
            break
        times.append((word, round(at / RATE, 3), round((at + len(clip)) / RATE, 3)))
        parts += [clip, np.zeros(round(RATE * dice.uniform(0.08, 0.25)))]
        at += len(clip) + len(parts[-1])
    audio = np.concatenate(parts)
    noise = np.random.default_rng(dice.randrange(1 << 30)).standard_normal(len(audio))
    return audio + NOISE * noise, times


def write(folder: Path, seed: int = 1) -> None:
    """Writes WORD-WORD-....wav for each recording, and times.json."""
    folder.mkdir(parents=True, exist_ok=True)
    dice, known = random.Random(seed), {}
    for text in TEXTS:
        audio, times = one(text.split(" "), dice)
        name = "-".join(word for word, _, _ in times)
        (folder / f"{name}.wav").write_bytes(as_wav(audio))
        known[name] = times
    (folder / "times.json").write_text(json.dumps(known))


def as_wav(audio: Samples) -> bytes:
    """Returns a mono WAV file with 16 bits."""
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((np.clip(audio, -1, 1) * 32767).astype("<i2").tobytes())
    return data.getvalue()
