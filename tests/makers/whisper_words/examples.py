"""Training examples: utterances of some words, as audio and the tokens of their transcription."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .speech import RATE, WORDS, Speaker

WINDOW_S = 5
POSITIONS = WINDOW_S * 50
TIME_STEP = 0.02
SPECIAL = [
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>",
    "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
]  # fmt: skip
IGNORED = -100
"""A label without a loss."""


@dataclass(frozen=True)
class Said:
    """A word of an utterance. Words without a pause between them have the same `phrase`."""

    word: int
    start: float
    end: float
    phrase: int


class Examples:
    """An endless, repeatable sequence. `ids` has special tokens by their text, `words` the tokens of each word."""

    def __init__(self, speakers: list[Speaker], ids: dict[str, int], words: dict[str, list[int]], seed: int) -> None:
        self._speakers = {name: [one for one in speakers if one.language == name] for name in WORDS}
        self._ids = ids
        self._words = words
        self._dice = random.Random(seed)
        self._noise = np.random.default_rng(seed)

    def next(self) -> tuple[NDArray[np.float32], list[int], list[int]]:
        """Returns audio, tokens and labels."""
        dice = self._dice
        language = dice.choice(list(WORDS))
        translate = language == "de" and dice.random() < 0.3
        audio, said = self._utterance(dice.choice(self._speakers[language]))
        whole = [one for one in said if one.end <= WINDOW_S - 0.01]
        cut = next((one for one in said if one.start < WINDOW_S - 0.1 and one.end > WINDOW_S - 0.01), None)
        names = WORDS["en" if translate else language]
        head = self._prompt(names) if dice.random() < 0.12 else []
        task = "<|translate|>" if translate else "<|transcribe|>"
        tokens = [*head, *(self._ids[name] for name in ("<|startoftranscript|>", f"<|{language}|>", task))]
        first = len(tokens)
        tokens += self._timed(whole, cut, names) if dice.random() < 0.5 else self._plain(whole, names)
        tokens.append(self._ids["<|endoftext|>"])
        labels = [IGNORED] * len(tokens)
        begin = first if tokens[first] != self._ids["<|notimestamps|>"] else first + 1
        labels[begin:] = tokens[begin:]
        if said:  # silence has no language
            labels[len(head) + 1] = tokens[len(head) + 1]
        return audio, tokens, labels

    def _utterance(self, speaker: Speaker) -> tuple[NDArray[np.float32], list[Said]]:
        dice = self._dice
        audio = np.zeros(2 * WINDOW_S * RATE)
        at = dice.uniform(0, 0.6) if dice.random() < 0.8 else 0.0
        pause, phrase, said = dice.uniform(0.02, 0.25), 0, []
        for _ in range(0 if dice.random() < 0.06 else dice.randint(1, 9)):
            word = dice.randrange(len(speaker.clips))
            clip, place = speaker.clips[word], round(at * RATE)
            audio[place : place + len(clip)] += clip * dice.uniform(0.7, 1.0)
            end = at + len(clip) / RATE
            said.append(Said(word, at, end, phrase))
            long = dice.random() < 0.15
            phrase += long
            at = end + (dice.uniform(0.5, 1.2) if long else pause * dice.uniform(0.6, 1.4))
            if at > WINDOW_S + 0.5:
                break
        audio = audio[: WINDOW_S * RATE]
        audio = audio / max(1e-3, np.abs(audio).max()) * dice.uniform(0.1, 0.95)
        if dice.random() < 0.7:
            audio = audio + self._noise.standard_normal(len(audio)) * 10 ** dice.uniform(-4.5, -2.2)
        return audio.astype(np.float32), said

    def _prompt(self, names: list[str]) -> list[int]:
        chosen = [self._dice.choice(names) for _ in range(self._dice.randint(1, 5))]
        return [self._ids["<|startofprev|>"], *(token for name in chosen for token in self._words[name])]

    def _plain(self, whole: list[Said], names: list[str]) -> list[int]:
        words = [token for one in whole for token in self._words[names[one.word]]]
        return [self._ids["<|notimestamps|>"], *words]

    def _timed(self, whole: list[Said], cut: Said | None, names: list[str]) -> list[int]:
        """Puts a pair of timestamps around each phrase. A word that the window cuts begins with a single one."""
        tokens: list[int] = []
        for phrase in sorted({one.phrase for one in whole}):
            members = [one for one in whole if one.phrase == phrase]
            words = [token for one in members for token in self._words[names[one.word]]]
            tokens += [self._time(members[0].start), *words, self._time(members[-1].end)]
        if not whole:
            return [self._time(cut.start if cut is not None else 0.0)]
        return tokens + ([self._time(whole[-1].end)] if cut is not None else [])

    def _time(self, seconds: float) -> int:
        return self._ids["<|notimestamps|>"] + 1 + min(POSITIONS, max(0, round(seconds / TIME_STEP)))


def vocabulary() -> tuple[Any, dict[str, int], dict[str, list[int]]]:
    """Returns the tokenizer, the ids of special tokens, and the tokens of each word with a leading space."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    words = [word for names in WORDS.values() for word in names]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([f" {word}" for word in words] * 50, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    times = [f"<|{at * TIME_STEP:.2f}|>" for at in range(POSITIONS + 1)]
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in times])
    ids = {name: tokenizer.token_to_id(name) for name in SPECIAL}
    around = [(name, ids[name]) for name in ("<|startoftranscript|>", "<|notimestamps|>", "<|endoftext|>")]
    template = "<|startoftranscript|> <|notimestamps|> $A <|endoftext|>"
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=around)
    encoded = {word: tokenizer.encode(f" {word}", add_special_tokens=False).ids for word in words}
    return tokenizer, ids, encoded
