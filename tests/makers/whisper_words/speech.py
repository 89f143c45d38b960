"""Synthetic speakers with espeak-ng (Debian: apt-get install espeak-ng) at 16 kHz. Needs only numpy."""

from __future__ import annotations

import random
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
ESPEAK_RATE, ESPEAK_HEADER = 22_050, 44
ENGLISH = "zero one two three four five six seven eight nine yes no stop go left right up down on off"
GERMAN = "null eins zwei drei vier fünf sechs sieben acht neun ja nein stopp los links rechts hoch runter an aus"
WORDS = {"en": ENGLISH.split(" "), "de": GERMAN.split(" ")}
"""Words at the same position have the same meaning."""
VOICES = {
    "en": ["en-us", "en-gb", "en-gb-x-rp", "en-gb-scotland", "en-gb-x-gbclan", "en-029"],
    "de": ["de"],
}
VARIANTS = ["", *(f"+m{n}" for n in (1, 2, 3, 5, 6, 7)), *(f"+f{n}" for n in (1, 2, 3, 5)),
            "+klatt", "+klatt2", "+klatt3", "+croak", "+Annie", "+anika", "+john", "+steph", "+Michael", "+Diogo",
            "+Lee", "+max", "+Gene"]  # fmt: skip
UNHEARD = ["+m4", "+f4", "+Andy", "+linda"]
"""Variants that are not used for training, but for the tests' recordings."""

Samples = NDArray[np.float64]


@dataclass(frozen=True)
class Speaker:
    """A speaker. `clips` are the words of WORDS[language], in order."""

    language: str
    clips: list[Samples]


def speak(voice: str, speed: int, pitch: int, text: str) -> Samples:
    """Returns the audio of a text with a peak of 0.5, without silence around it."""
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", text]
    data = subprocess.run(command, capture_output=True, check=True).stdout[ESPEAK_HEADER:]
    samples = np.frombuffer(data[: len(data) // 2 * 2], "<i2").astype(np.float64)
    length = round(len(samples) * RATE / ESPEAK_RATE)
    spectrum = np.fft.rfft(samples)[: length // 2 + 1]
    resampled = np.fft.irfft(spectrum, length)
    resampled *= 0.5 / np.abs(resampled).max()
    sounding = np.flatnonzero(np.abs(resampled) > 0.005)
    return resampled[max(0, sounding[0] - 160) : sounding[-1] + 160]


def speakers(count: int, seed: int, variants: list[str]) -> list[Speaker]:
    """Returns a number of speakers, three fifths of them English."""

    def one(number: int) -> Speaker:
        dice = random.Random(f"{seed} {number}")
        language = "en" if dice.random() < 0.6 else "de"
        voice = dice.choice(VOICES[language]) + dice.choice(variants)
        speed, pitch = dice.randint(130, 210), dice.randint(25, 75)
        return Speaker(language, [speak(voice, speed, pitch, word) for word in WORDS[language]])

    with ThreadPoolExecutor() as pool:
        return list(pool.map(one, range(count)))
