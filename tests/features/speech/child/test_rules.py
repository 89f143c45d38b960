"""Timestamp rules, sampling, segments, alignment and features, which need no model."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lean_ovms.features.speech.child.alignment import TimedWord, shortened, split_words, warp, word_times
from lean_ovms.features.speech.child.beams import Beams
from lean_ovms.features.speech.child.decode_rows import DecodeRow, compression_ratio, read_to, segments_of
from lean_ovms.features.speech.child.logits import Rules, penalize, sample
from lean_ovms.features.speech.child.mel import LogMel, filters
from lean_ovms.features.speech.child.recognizer import Job
from lean_ovms.features.speech.child.whisper_files import WhisperFiles
from lean_ovms.features.speech.params import Segment, TranscribeParams, Word

FILES = WhisperFiles(
    eot=10,
    sot=11,
    prev=12,
    no_timestamps=14,
    tasks={},
    languages={},
    suppress=[3],
    begin_suppress=[4],
    initial_timestamp=5,
    positions=64,
    mels=80,
    frames=100,
    heads=[],
)
RULES = Rules(FILES)
T = FILES.first_time
SIZE = T + 21


def allowed(tokens: list[int], times: bool = True) -> set[int]:
    line = np.zeros(SIZE, np.float32)
    line[:T] = 20  # text must be likelier than all timestamps together
    RULES.apply(line, tokens, times)
    return set(np.flatnonzero(line > -np.inf).tolist())


def test_text_begins_with_a_timestamp_that_is_not_late() -> None:
    assert allowed([]) == set(range(T, T + 6))


def test_timestamps_come_in_pairs_and_do_not_decrease() -> None:
    text = set(range(T)) - {3, 14}
    assert allowed([T]) == text
    assert allowed([T, 1]) == text | set(range(T + 1, SIZE))
    assert allowed([T, 1, T + 4]) == set(range(10, T + 21)) - {14} - set(range(T, T + 4))
    assert allowed([T, 1, T + 4, T + 4]) == text
    assert allowed([], times=False) == set(range(SIZE)) - {3, 4, 14}


def test_a_timestamp_is_taken_if_together_they_are_likelier_than_any_text() -> None:
    line = np.zeros(SIZE, np.float32)
    RULES.apply(line, [T, 1], True)
    assert int(line.argmax()) >= T


@pytest.mark.slow
@given(st.lists(st.integers(0, SIZE - 1), max_size=12))
def test_something_may_always_follow(tokens: list[int]) -> None:
    line = np.zeros(SIZE, np.float32)
    RULES.apply(line, tokens, True)
    assert np.isfinite(line).any()


def test_sampling_takes_what_top_k_and_top_p_leave() -> None:
    line = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    draw = np.random.default_rng(0)
    assert sample(line, 0.0, TranscribeParams(), draw) == 0

    def drawn(**params: float) -> set[int]:
        return {sample(line, 1.0, TranscribeParams(**params), draw) for _ in range(300)}  # type: ignore[arg-type]

    assert drawn() == {0, 1, 2, 3}
    assert drawn(top_k=2) == {0, 1}
    assert drawn(top_p=0.75) == {0, 1}
    assert drawn(top_p=0.0) == {0}
    assert {sample(line, 5e-324, TranscribeParams(top_k=count), draw) for count in (0, 3)} == {0}


def test_penalties_lower_what_was_said() -> None:
    line = np.array([2.0, -2.0, 1.0], np.float32)
    penalize(line, [0, 1, 1], TranscribeParams(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25))
    assert line.tolist() == [0.25, -5.0, 1.0]
    penalize(line, [0], TranscribeParams(repetition_penalty=1e-300))
    assert np.isfinite(line).all()


def test_segments_stay_within_the_window() -> None:
    pieces = [bytes([97 + token]) for token in range(10)]
    tokens = [T, 0, 1, T + 10, T + 10, T + 20, 2]
    found = segments_of(tokens, FILES, pieces, 5.0, 5.3)
    assert [(one.start, one.end, one.text) for one in found] == [(5.0, 5.2, "ab")]  # the other segment begins at 5.4
    found = segments_of([5, 6], FILES, pieces, 1.0, 2.0)
    assert [(one.start, one.end, one.text) for one in found] == [(1.0, 2.0, "fg")]
    assert segments_of([T, T + 2], FILES, pieces, 0.0, 1.0) == []


@pytest.mark.parametrize(
    ("tokens", "seconds"),
    [
        ([T, 0, T + 5, T + 5], 0.1),  # the window cuts the next segment
        ([T, 0, T + 5, T + 5, 1, T + 9, T + 12], 0.18),
        ([T, 0, T + 5], None),  # nothing follows it
        ([T, 0, T + 5, T + 5, 1], None),  # all text is complete
        ([T, 0], None),
        ([T], None),
        ([], None),
    ],
)
def test_a_window_is_read_to_its_last_whole_segment(tokens: list[int], seconds: float | None) -> None:
    assert read_to(tokens, FILES) == (seconds and pytest.approx(seconds))


@pytest.mark.parametrize(("words", "seconds"), [(None, 5.1), ([0.04], 5.04), ([0.02, 0.2], 5.2)])
def test_with_words_a_window_is_read_to_the_last_word(words: list[float] | None, seconds: float) -> None:
    job = Job(np.zeros(16000, np.float32), 5.0, TranscribeParams(segments=True, words=True), times=True)
    row = DecodeRow(job, FILES, [b"a"] * SIZE, [])
    row.attempts[0].tokens = [T, 0, T + 5, T + 5]
    row.finish(row.segments(), words and [Word(word="a", start=5.0, end=5 + end) for end in words])
    assert job.read_to == pytest.approx(seconds)


def test_words_are_aligned_with_all_of_the_window() -> None:
    job = Job(np.zeros(16000, np.float32), 5.0, TranscribeParams(segments=True, words=True), times=True)
    row = DecodeRow(job, FILES, [b"a"] * SIZE, [])
    row.attempts[0].tokens = [T, 0, T + 5, T + 5]
    weights = np.zeros((1, 4, 50), np.float32)  # for <|startoftranscript|>, <|notimestamps|>, the text and its end
    weights[0, 1, :25] = weights[0, 2, 25:] = 9
    [word] = word_times(row, row.segments(), FILES, [b"a"] * SIZE, lambda ids: weights)
    assert (word.start, word.end) == (5.0, pytest.approx(5.5, abs=0.05))


def test_a_text_that_repeats_itself_compresses_well() -> None:
    assert compression_ratio("no " * 60) > 2.4 > compression_ratio("a quick brown fox")
    assert compression_ratio("") == 1.0
    assert compression_ratio(" a quick brown fox") == compression_ratio("a quick brown fox")


def test_words_keep_their_tokens_together() -> None:
    pieces = [b" one", b" t", b"wo", b"\xe4\xb8", b"\xad", b"\xe5\x9b\xbd"]
    assert split_words([0, 1, 2], pieces, "en") == [(" one", [0]), (" two", [1, 2])]
    assert split_words([3, 4, 5], pieces, "zh") == [("中", [3, 4]), ("国", [5])]
    assert split_words([3], pieces, "en") == [("�", [3])]


Span = tuple[str, float, float]
SEVEN = [(f" w{at}", at / 5, (at + 1) / 5) for at in range(7)]
"""Words of 0.2 s each, so that a long one becomes 0.4 s."""


def fitted(spans: list[Span], start: float, end: float) -> tuple[list[Span], float, float]:
    """Returns the words and the times of their segment, which was decoded from `start` to `end`."""
    segment = Segment(start=start, end=end, text="", tokens=[0] * len(spans))
    words = shortened([TimedWord(text, 1, begin, until) for text, begin, until in spans], [segment], 0.0)
    return [(word.text, round(word.start, 3), round(word.end, 3)) for word in words], segment.start, segment.end


@pytest.mark.parametrize(
    ("more", "end", "expected", "until"),
    [
        ([(" last", 1.4, 1.6), (".", 1.6, 4.0)], 1.6, [(" last.", 1.4, 1.6)], 1.6),
        ([(" (", 1.4, 2.4), ("last", 2.4, 2.6), (")", 2.6, 2.8)], 2.6, [(" (last)", 2.4, 2.6)], 2.6),
        ([(".", 1.4, 1.6), (" New", 1.6, 5.0)], 5.0, [(" w6.", 1.2, 1.4), (" New", 4.6, 5.0)], 5.0),
        ([(" last", 1.4, 9.0)], 1.7, [(" last", 1.4, 1.7)], 1.7),
        ([(" last", 1.55, 9.0)], 1.6, [(" last", 1.55, 1.75)], 1.6),
        ([(" last", 1.4, 2.1)], 1.7, [(" last", 1.4, 2.1)], 2.1),
    ],
)
def test_pauses_are_in_no_word(more: list[Span], end: float, expected: list[Span], until: float) -> None:
    found, start, segment_end = fitted([*SEVEN, *more], 0.0, end)
    assert found[-len(expected) :] == expected
    assert (start, segment_end) == (0.0, until)


@pytest.mark.parametrize(
    ("first", "start", "expected"),
    [
        ([(" one", 0.0, 3.0)], 0.0, [(" one", 2.6, 3.0)]),
        ([(" one", 0.0, 1.0), (" two", 1.0, 3.0)], 0.0, [(" one", 2.2, 2.6), (" two", 2.6, 3.0)]),
        ([(" one", 0.6, 1.0), (" two", 1.0, 3.0)], 0.0, [(" one", 2.2, 2.6), (" two", 2.6, 3.0)]),
        ([(" one", 0.0, 0.7)], 0.6, [(" one", 0.5, 0.7)]),
    ],
)
def test_a_segment_begins_after_the_pause_before_it(first: list[Span], start: float, expected: list[Span]) -> None:
    later = [(text, begin + 3, until + 3) for text, begin, until in SEVEN]
    found, begin, _ = fitted([*first, *later], start, 4.4)
    assert found[: len(expected)] == expected
    assert begin == (start if start == 0.6 else expected[0][1])


def test_each_segment_has_the_times_of_its_own_words() -> None:
    spans = [*SEVEN[:3], (" long", 0.6, 1.2), *((text, start + 0.6, end + 0.6) for text, start, end in SEVEN[3:])]
    words = [TimedWord(text, 2, start, end) for text, start, end in spans]
    parts = [
        Segment(start=0.0, end=1.0, text="", tokens=[0] * 6),
        Segment(start=1.0, end=2.0, text="", tokens=[0] * 10),
    ]
    shortened(words, parts, 0.0)
    assert [(one.start, one.end) for one in parts] == [(0.0, 0.6), (0.6, 2.0)]


def test_words_that_are_all_long_count_as_of_0_7_seconds() -> None:
    found, _, _ = fitted([(" a", 0.0, 2.0), (".", 2.0, 4.0), (" b", 4.0, 7.0)], 0.0, 7.0)
    assert found == [(" a.", 0.0, 2.0), (" b", 5.6, 7.0)]


@given(
    lengths=st.lists(st.tuples(st.sampled_from([" a", ".", ",", ' "', "?", " bc"]), st.integers(0, 200)), max_size=12),
    bounds=st.lists(st.integers(0, 600), min_size=2, max_size=2),
)
@pytest.mark.slow
def test_words_stay_in_order_however_they_are_shortened(lengths: list[tuple[str, int]], bounds: list[int]) -> None:
    edges = [0, *itertools.accumulate(length for _, length in lengths)]
    spans = [(text, edges[at] / 50, edges[at + 1] / 50) for at, (text, _) in enumerate(lengths)]
    found, _, _ = fitted(spans, min(bounds) / 50, max(bounds) / 50)
    assert "".join(text for text, _, _ in found) == "".join(text for text, _, _ in spans)
    flat = [time for _, start, end in found for time in (start, end)]
    assert flat == sorted(flat)


def test_the_cheapest_path_follows_the_diagonal_that_is_there() -> None:
    cost = np.ones((3, 9))
    cost[0, :2] = cost[1, 2:7] = cost[2, 7:] = 0
    rows, columns = warp(cost)
    assert [int(rows[np.flatnonzero(columns == column)[0]]) for column in range(9)] == [0, 0, 1, 1, 1, 1, 1, 2, 2]


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 99))
@pytest.mark.slow
def test_a_path_leads_from_corner_to_corner_by_single_steps(rows: int, columns: int, seed: int) -> None:
    path = np.stack(warp(np.random.default_rng(seed).random((rows, columns))), axis=1)
    assert path[0].tolist() == [0, 0]
    assert path[-1].tolist() == [rows - 1, columns - 1]
    assert {tuple(step) for step in np.diff(path, axis=0).tolist()} <= {(0, 1), (1, 0), (1, 1)}


def test_filters_have_the_published_corners() -> None:
    """Whisper uses librosa.filters.mel(sr=16000, n_fft=400, n_mels=80)."""
    found = filters(80)
    assert found.shape == (80, 201)
    assert found[0, :3].tolist() == pytest.approx([0.0, 0.02486259, 0.0], abs=1e-6)
    assert found[1, :3].tolist() == pytest.approx([0.0, 0.0019908, 0.0228718], abs=1e-6)


@pytest.mark.parametrize("count", [0, 1, 150, 200, 201, 8000, 15900, 16000, 20000])
def test_features_of_any_length_are_those_of_the_padded_window(count: int) -> None:
    samples = np.random.default_rng(1).standard_normal(count).astype(np.float32) * 0.1
    mel = LogMel(80, 100)
    padded = np.zeros(16000, np.float32)
    padded[: min(count, 16000)] = samples[:16000]
    found = mel(samples)
    assert found.shape == (1, 80, 100)
    assert np.abs(found - mel(padded)).max() < 1e-4


# --- beam search


EOT, WORDS, LENGTH = FILES.eot, 3, 4


class Table:
    """Log probabilities of the next token given the last two, of WORDS words and the end."""

    def __init__(self, seed: int) -> None:
        made = np.random.default_rng(seed).normal(size=(WORDS + 1, WORDS + 1, WORDS + 1)) * 2
        self.values = made - np.log(np.exp(made).sum(axis=-1, keepdims=True))

    def line(self, tokens: list[int]) -> np.ndarray:
        one, two = (
            min(token, WORDS) for token in [WORDS, WORDS, *tokens][-2:]
        )  # rows that continue no text contain the end token
        found = np.full(FILES.first_time + 10, -np.inf, np.float32)
        found[:WORDS], found[EOT] = self.values[one, two, :WORDS], self.values[one, two, WORDS]
        return found

    def total(self, tokens: tuple[int, ...]) -> float:
        """Returns the log probability of a text with its end."""
        return self.cut((*tokens, EOT))

    def cut(self, tokens: tuple[int, ...]) -> float:
        """Returns the log probability of a text without an end."""
        return float(sum(self.line(list(tokens[:at]))[token] for at, token in enumerate(tokens)))


def searched(table: Table, width: int, penalty: float, limit: int = LENGTH) -> tuple[list[int], float]:
    params = TranscribeParams(beams=width, length_penalty=penalty)
    search = Beams(width, limit, EOT, Rules(FILES), params, times=False)
    texts: list[list[int]] = [[]] * width
    for _ in range(limit + 1):
        if search.advance(np.stack([table.line(text) for text in texts])):
            break
        texts = [[*texts[parent], int(token)] for parent, [token] in zip(search.parents, search.tokens, strict=True)]
    return search.best.tokens, search.best.total


@pytest.mark.parametrize("penalty", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(6))
def test_a_wide_search_finds_the_best_text_of_all(seed: int, penalty: float) -> None:
    """Truncated texts, which have no end, are included."""
    table = Table(seed)
    texts = [text for size in range(LENGTH + 1) for text in itertools.product(range(WORDS), repeat=size)]
    scores = {
        text: table.total(text) / (len(text) + 1) ** penalty
        if len(text) < LENGTH
        else table.cut(text) / LENGTH**penalty
        for text in texts
    }
    found, _ = searched(table, 100, penalty)
    assert tuple(found) == max(scores, key=scores.__getitem__)


@pytest.mark.parametrize("seed", range(6))
def test_a_search_of_one_is_greedy_and_a_wider_one_no_worse(seed: int) -> None:
    table = Table(seed)
    greedy: list[int] = []
    while len(greedy) < LENGTH and (token := int(table.line(greedy).argmax())) != EOT:
        greedy.append(token)
    assert searched(table, 1, 1.0)[0] == greedy
    assert len(searched(table, 3, 1.0)[0]) <= LENGTH
