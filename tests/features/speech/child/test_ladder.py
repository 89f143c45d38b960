"""The decode loop with a scripted network: fallback temperatures, the end of a text, its language beside prompts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lean_ovms.features.speech.child.decode_loop import SLOTS, DecodeLoop
from lean_ovms.features.speech.child.decode_rows import DRAWS, LADDER, Attempt, DecodeRow, loops
from lean_ovms.features.speech.child.logits import Rules
from lean_ovms.features.speech.child.recognizer import Job
from lean_ovms.features.speech.params import TranscribeParams
from lean_ovms.types.engine import Vocabulary
from tests.features.speech.child.test_rules import FILES, SIZE

PIECES = [b" " + bytes([97 + token]) * 3 for token in range(10)] + [b""] * (SIZE - 10)
OPEN = (0, 1, 2, 5, 6, 7, 8, 9)
"""Tokens that the rules allow anywhere."""
LETTERS = [bytes([97 + token]) for token in range(10)] + [b""] * (SIZE - 10)
"""Eight of these in any order have a compression ratio of less than 2.4, and two of more."""
LONG = replace(FILES, positions=448)
ENGLISH, GERMAN = 11, 12
"""The tokens of two languages."""
LOOP, SPEECH = [1] * 60, [1, 2, 3, 4]


def row(**params: Any) -> DecodeRow:
    return DecodeRow(Job(np.zeros(160, np.float32), 0.0, TranscribeParams(**params)), FILES, PIECES, [])


def fill(attempt: Attempt, tokens: list[int], logprob: float) -> None:
    for token in tokens:
        attempt.add(token, logprob, len(tokens))
    attempt.total = logprob * (len(tokens) + 1)


def settled(*rungs: list[tuple[list[int], float]], **params: Any) -> DecodeRow:
    """Returns a row of which texts were decoded, given as (tokens, average log probability) for each temperature."""
    made = row(**params)
    for rung, texts in enumerate(rungs):
        assert len(made.attempts) == (DRAWS if rung else 1)
        for place, attempt in enumerate(made.attempts):
            fill(attempt, *texts[place % len(texts)])
        assert made.ended
        assert made.settle() == (rung == len(rungs) - 1)
    return made


@pytest.mark.parametrize(
    ("rungs", "temperature", "logprob"),
    [
        ([[(SPEECH, -0.5)]], 0.0, -0.5),
        ([[(SPEECH, -1.5)], [(SPEECH, -3.0), (SPEECH, -0.9)]], 0.2, -0.9),  # the best of several samples
        ([[(LOOP, -0.1)], [(LOOP, -0.1), (SPEECH, -0.4)]], 0.2, -0.4),  # the one without repetition
        ([[(SPEECH, -1.2)], *[[(SPEECH, -2.0 - rung)] for rung in range(5)]], 0.0, -1.2),  # the best of all
        ([[(LOOP, -0.1)], *[[(SPEECH, -2.0 - rung)] for rung in range(5)]], 0.2, -2.0),
        ([[(LOOP, -0.3)], *[[(LOOP, -0.4)] for _ in range(5)]], 0.0, -0.3),
    ],
)
def test_the_likeliest_text_that_does_not_repeat_itself_counts(rungs: Any, temperature: float, logprob: float) -> None:
    chosen = settled(*rungs).chosen
    assert (chosen.temperature, chosen.avg_logprob) == (temperature, pytest.approx(logprob))


def test_without_the_ladder_the_first_text_counts() -> None:
    assert settled([(LOOP, -9.0)], fallback=False).chosen.tokens == LOOP
    assert settled([(SPEECH, -9.0)], temperature=0.7).chosen.temperature == 0.7


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([5] * 40, True),
        ([5] * 39, False),
        ([*range(30), *[1, 2, 3] * 14], True),
        ([*range(12)] * 4, True),
        ([*range(12)] * 3, False),
        ([*[1, 2, 3] * 20, 4], False),
        ([], False),
    ],
)
def test_a_loop_is_a_block_again_and_again(tokens: list[int], expected: bool) -> None:
    assert loops(tokens) is expected


class Network:
    """A decoder with the same logits in every step. `begun` has the number of texts in each of its states."""

    version = "0"

    def __init__(self, logits: Any) -> None:
        self._logits = np.array(logits, np.float32)
        self.begun: list[int] = []

    def encode(self, _features: Any) -> Any:
        return np.zeros((1, 2, 1), np.float32)

    def begin(self, hidden: Any) -> Any:
        self.begun.append(len(hidden))
        return self

    def step(self, ids: Any) -> Any:
        return np.tile(self._logits, (*ids.shape, 1))

    def close(self) -> None:
        pass


def transcribe(network: Network, count: int, **params: Any) -> list[Job]:
    loop = DecodeLoop(LONG, network, None, Vocabulary(pieces=PIECES))
    jobs = [Job(np.zeros(1600, np.float32), 0.0, TranscribeParams(**params), stream=True) for _ in range(count)]
    loop.start(jobs)
    while not all(job.done for job in jobs):
        loop.step()
    return jobs


def test_the_draws_of_a_temperature_are_decoded_together_within_the_slots() -> None:
    network = Network(np.zeros(SIZE))
    jobs = transcribe(network, 2, max_tokens=2)
    assert network.begun[0] == 2
    assert network.begun[1:] == [DRAWS] * 2 * (len(LADDER) - 1)
    assert max(network.begun) <= SLOTS
    for job in jobs:
        assert job.result is not None
        assert "".join(piece.text for piece in job.pieces) == job.result.text


@pytest.mark.parametrize("params", [{"fallback": False}, {"temperature": 0.01}, {}])
def test_a_text_that_repeats_itself_ends(params: dict[str, Any]) -> None:
    """This applies with fallback too: in a wrong language all texts repeat themselves at most temperatures."""
    logits = np.full(SIZE, -20.0)
    logits[5] = 0
    [job] = transcribe(Network(logits), 1, **params)
    assert job.result is not None
    assert (job.result.tokens, job.result.stopped) == (40, "stop")
    assert "".join(piece.text for piece in job.pieces) == job.result.text


@pytest.mark.parametrize(("letters", "tokens"), [(2, 224), (8, 300)])
def test_a_text_of_half_the_positions_ends_if_it_says_little(letters: int, tokens: int) -> None:
    """Letters in random order are not a loop."""
    made = DecodeRow(Job(np.zeros(160, np.float32), 0.0, TranscribeParams()), LONG, LETTERS, [])
    [attempt], dice = made.attempts, np.random.default_rng(1)
    while len(attempt.tokens) < 300 and not attempt.ended:
        logits = np.full(SIZE, -20.0, np.float32)
        logits[OPEN[dice.integers(letters)]] = 0
        made.choose(attempt, logits, Rules(LONG))
    assert len(attempt.tokens) == tokens


class Letters:
    """A tokenizer with a token for each character."""

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [[1] * len(text) for text in texts]


class Counted(Network):
    """A decoder that notes the most states at a time, and fails in the first step of states of `failing` texts."""

    def __init__(self, failing: int = 0) -> None:
        super().__init__(np.zeros(SIZE))
        self.failing, self.open, self.most = failing, 0, 0

    def begin(self, hidden: Any) -> Any:
        self.open += 1
        self.most = max(self.most, self.open)
        return super().begin(hidden)

    def step(self, ids: Any, beams: Any = None) -> Any:
        if len(ids) == self.failing:
            self.open -= 1
            raise RuntimeError("Exception from src/inference")
        return super().step(ids)

    def close(self) -> None:
        self.open -= 1


def mixed() -> list[Job]:
    """Returns windows that are decoded in several groups: with and without times, prompts, beams and haste."""
    plain, beams = (TranscribeParams(fallback=False, beams=count) for count in (1, 3))
    windows = [(plain, "", False), (plain, "abc", False), (plain, "", True), (beams, "", False)]
    return [
        Job(np.zeros(1600, np.float32), 0.0, params, prompt=prompt, max_tokens=3, times=times, soon=soon)
        for params, prompt, times in windows
        for soon in (False, True)
    ]


def test_each_queue_has_one_state_of_the_decoder_at_a_time() -> None:
    network = Counted()
    loop = DecodeLoop(LONG, network, Letters(), Vocabulary(pieces=PIECES))
    jobs, (cancelled, *_) = mixed(), mixed()
    loop.start([*jobs, cancelled])
    for _ in range(12):
        loop.step()
    cancelled.cancelled = True
    while not all(job.done for job in jobs):
        loop.step()
    assert [job.error for job in jobs] == [None] * len(jobs)
    assert (network.most, network.open) == (2, 0)


def test_an_error_of_the_network_ends_only_the_windows_of_its_group(caplog: pytest.LogCaptureFixture) -> None:
    network = Counted(failing=3)
    loop = DecodeLoop(LONG, network, Letters(), Vocabulary(pieces=PIECES))
    for _ in range(2):
        jobs = mixed()
        loop.start(jobs)
        while not all(job.done for job in jobs):
            loop.step()
        assert [job.error is not None for job in jobs] == [job.params.beams == 3 for job in jobs]
    assert network.open == 0
    assert [record.message for record in caplog.records] == ["1 window of audio failed"] * 4


def test_a_network_that_fails_does_not_warm_up() -> None:
    with pytest.raises(RuntimeError, match="could not process"):
        DecodeLoop(LONG, Counted(failing=1), Letters(), Vocabulary(pieces=PIECES)).warm_up()


class Prompted(Network):
    """A decoder that takes the language of a prompt for that of the speech, as Whisper does."""

    _tokens = 0

    def begin(self, hidden: Any) -> Any:
        return Prompted(self._logits)

    def step(self, ids: Any, beams: Any = None) -> Any:
        self._tokens += ids.shape[1]
        logits = np.array(super().step(ids))
        logits[..., GERMAN if self._tokens > 1 else ENGLISH] = 5
        return logits


@pytest.mark.parametrize("params", [{}, {"beams": 2}, {"hotwords": "Stra\u00dfe"}])
@pytest.mark.parametrize("prompts", [("Guten Tag", "", "Guten Tag"), ("Guten Tag",), ("",)])
def test_the_language_is_that_of_the_speech_and_not_of_the_prompt(
    prompts: tuple[str, ...], params: dict[str, Any]
) -> None:
    files = replace(LONG, languages={"en": ENGLISH, "de": GERMAN}, tasks={"transcribe": 13})
    loop = DecodeLoop(files, Prompted(np.zeros(SIZE)), Letters(), Vocabulary(pieces=PIECES))
    one = TranscribeParams(**params, max_tokens=1, fallback=False)
    jobs = [Job(np.zeros(1600, np.float32), 0.0, one, prompt=prompt, max_tokens=1) for prompt in prompts]
    given = Job(np.zeros(1600, np.float32), 0.0, one, prompt="Guten Tag", max_tokens=1, language="de")
    loop.start([*jobs, given])
    while not all(job.done for job in (*jobs, given)):
        loop.step()
    assert [job.result.language for job in (*jobs, given) if job.result] == ["en"] * len(jobs) + ["de"]
