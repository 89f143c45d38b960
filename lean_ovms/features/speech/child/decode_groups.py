"""Groups of windows that are decoded together, token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .beams import Beams
from .decode_rows import DecodeRow
from .logits import Rules, probability
from .whisper_files import WhisperFiles


def first_logits(decoding: Any, rows: list[DecodeRow], files: WhisperFiles) -> NDArray[np.float32]:
    """Computes the prompts, and returns the logits of the first token of each text [texts, vocabulary].

    A row has as many texts as its width. The logits after <|startoftranscript|> give the probability that nobody speaks
    and, if it is not known, the language.
    """
    widths = [row.width for row in rows]
    heads = np.array([[*row.prompt, files.sot] for row in rows], np.int64)
    logits = decoding.step(np.repeat(heads, widths, axis=0))[:, -1]
    for row, place in zip(rows, np.cumsum([0, *widths[:-1]]), strict=True):
        row.no_speech = probability(logits[place], files.no_speech)
        if files.languages and not row.language:
            row.detect_language(logits[place])
    rest = np.array([row.opening() + ([] if row.job.times else [files.no_timestamps]) for row in rows], np.int64)
    if rest.shape[1]:
        logits = decoding.step(np.repeat(rest, widths, axis=0))[:, -1]
    found: NDArray[np.float32] = logits
    return found


class _Group:
    """Windows that are decoded together. The decoder has a state for them from the first step on."""

    def __init__(self, rows: list[DecodeRow], network: Any, files: WhisperFiles) -> None:
        """Keeps the windows.

        Args:
            rows: The windows, with equally long prompts.
            network: The network, a WhisperNetwork.
            files: The sizes and special tokens of the model.
        """
        self.rows = rows  # the windows that have not ended
        self._network = network
        self._files = files
        self._decoding: Any = None

    def _begun(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Begins the state with the encoder's output for each text. Returns the logits of their first tokens."""
        self._decoding = self._network.begin(hidden)
        return first_logits(self._decoding, self.rows, self._files)

    def close(self) -> None:
        """Ends the decoder's state."""
        if self._decoding is not None:
            self._decoding.close()


class DecodeGroup(_Group):
    """Windows whose texts are sampled."""

    def __init__(self, rows: list[DecodeRow], network: Any, files: WhisperFiles, rules: Rules) -> None:
        """Keeps the windows.

        Args:
            rows: The windows, with equally long prompts.
            network: The network, a WhisperNetwork.
            files: The sizes and special tokens of the model.
            rules: The rules for the tokens of a transcript.
        """
        super().__init__(rows, network, files)
        self._texts = [(row, attempt) for row in rows for attempt in row.attempts]
        self._rules = rules
        self._next = np.full((len(self._texts), 1), files.eot, np.int64)

    def step(self) -> list[DecodeRow]:
        """Decodes a token of each text. Removes the rows that have ended from the group, and returns them.

        The decoder still computes tokens for ended rows until the whole group has ended, and these are ignored. The
        rows are not taken out of the decoder's state, as OpenVINO (2026.4) fails in the next group after a state was
        set.
        """
        if self._decoding is None:
            hidden = np.concatenate([row.hidden for row, _ in self._texts if row.hidden is not None])
            self._choose(self._begun(hidden))
        else:
            self._choose(self._decoding.step(self._next)[:, -1])
        ended = [row for row in self.rows if row.ended]
        self.rows = [row for row in self.rows if row not in ended]
        return ended

    def _choose(self, logits: NDArray[np.float32]) -> None:
        logits = np.array(logits, np.float32)
        for place, (row, attempt) in enumerate(self._texts):
            if row in self.rows and not attempt.ended:
                self._next[place] = row.choose(attempt, logits[place], self._rules)


class BeamGroup(_Group):
    """A window that is decoded by beam search."""

    def __init__(self, row: DecodeRow, network: Any, files: WhisperFiles, rules: Rules) -> None:
        """Keeps the window; its arguments are those of a DecodeGroup."""
        super().__init__([row], network, files)
        params = row.job.params
        self._beams = Beams(params.beams, row.limit, files.eot, rules, params, row.job.times)

    def step(self) -> list[DecodeRow]:
        """Decodes a token of each beam. Returns the row in a list when it has ended, else an empty list."""
        [row] = self.rows
        if self._decoding is None:
            assert row.hidden is not None
            logits = self._begun(np.repeat(row.hidden, row.width, axis=0))
        else:
            logits = self._decoding.step(self._beams.tokens, self._beams.parents)[:, -1]
        if not self._beams.advance(np.array(logits, np.float32)):
            return []
        row.finish_beam_search(self._beams.best)
        self.rows = []
        return [row]


class DecodeQueue:
    """A queue of windows by their states: new, encoded, and decoded in groups.

    Only the first group has a state of the decoder, so that there are no more compiled decoders than queues.
    """

    def __init__(self) -> None:
        self.new: list[DecodeRow] = []
        self.encoded: list[DecodeRow] = []
        self.groups: list[DecodeGroup | BeamGroup] = []

    def drop_cancelled(self) -> None:
        """Drops cancelled rows, and groups of which none are left."""
        self.new = [row for row in self.new if not row.job.cancelled]
        self.encoded = [row for row in self.encoded if not row.job.cancelled]
        for group in list(self.groups):
            group.rows = [row for row in group.rows if not row.job.cancelled]
            if not group.rows:
                self.end(group)

    def end(self, group: DecodeGroup | BeamGroup) -> None:
        """Removes a group, and ends its state."""
        self.groups.remove(group)
        group.close()

    @property
    def decoding(self) -> list[DecodeRow]:
        return [row for group in self.groups for row in group.rows if not row.job.cancelled]

    @property
    def size(self) -> int:
        """The number of windows in the queue that are not cancelled."""
        return len(self.decoding) + sum(not row.job.cancelled for row in (*self.new, *self.encoded))

    @property
    def busy(self) -> bool:
        """Whether there is something to encode or to decode."""
        return bool(self.new or self.encoded or self.groups)
