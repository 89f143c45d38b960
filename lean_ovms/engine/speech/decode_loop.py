"""Decodes windows of several requests together: the recognizer of Whisper models, on the exported networks.

Windows are encoded one by one; those that were waiting are then decoded as a group, a token of each in every step, and
leave as they end. The decoder has no mask, so the rows of a group have equally many tokens, and none can join later:
the next group of files begins when the last one has ended, a window of a live request at once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import BadRequest, StartError
from ...speech_types import TRANSLATE, SpeechInfo, TranscribeParams
from ...types import ModelInfo, Vocabulary
from ..errors import last_line
from .alignment import word_times
from .logits import Rules
from .mel import HOP, LogMel
from .recognizer import Job
from .rows import Row
from .whisper_files import WhisperFiles

log = logging.getLogger(__name__)

SLOTS = 8
"""Windows in work."""
SPECIAL = re.compile(r"<\|[^|<>]*\|>")
MAX_BEAMS = 8


class Group:
    """Rows that are decoded together, with the decoder's state."""

    def __init__(self, rows: list[Row], decoding: Any, files: WhisperFiles, rules: Rules) -> None:
        self.rows = rows  # that have not ended
        self._places = rows
        self._decoding = decoding
        self._files = files
        self._rules = rules
        self._next = np.full((len(rows), 1), files.eot, np.int64)
        self._started = False

    def step(self) -> list[Row]:
        """A token of each row; those that have ended, which are in the group no more.

        What the decoder computes for them until the last one has ended is of no use. Taking them out of its state costs
        more: openvino (2026.4) fails in the next group after a state was set.
        """
        if not self._started:
            self._first()
        else:
            self._take(self._decoding.step(self._next)[:, -1])
        ended = [row for row in self.rows if row.ended or row.job.cancelled]
        if ended:
            self.rows = [row for row in self.rows if row not in ended]
        if not self.rows:
            self._decoding.close()
        return ended

    def _first(self) -> None:
        """Read the prompt: <|startoftranscript|> first, whose logits tell the language and whether there is speech."""
        self._started = True
        heads = np.array([[*row.prompt, self._files.sot] for row in self.rows], np.int64)
        lines = self._decoding.step(heads)[:, -1]
        for row, line in zip(self.rows, lines, strict=True):
            row.hear_speech(line)
            if self._files.languages and not row.language:
                row.hear_language(line)
        rest = [row.opening() + ([] if row.job.times else [self._files.no_timestamps]) for row in self.rows]
        if rest[0]:
            lines = self._decoding.step(np.array(rest, np.int64))[:, -1]
        self._take(lines)

    def _take(self, lines: NDArray[np.float32]) -> None:
        lines = np.array(lines, np.float32)
        for place, row in enumerate(self._places):
            if row in self.rows:
                self._next[place] = row.take(lines[place], self._rules)


class DecodeLoop:
    """A recognizer.Recognizer. network: a whisper_network.WhisperNetwork; tokenizer: has encode and decode."""

    def __init__(self, files: WhisperFiles, network: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.window = files.frames * HOP
        self._files = files
        self._network = network
        self._tokenizer = tokenizer
        self._pieces = vocabulary.pieces
        self._mel = LogMel(files.mels, files.frames)
        self._rules = Rules(files)
        self._new: list[Row] = []  # to be encoded
        self._encoded: list[Row] = []
        self._groups: list[Group] = []
        self.info = self._describe()

    def _describe(self) -> ModelInfo:
        files = self._files
        capabilities = ["logprobs", "timed_stream", "fallback"]
        if files.heads:
            capabilities.append("words")
        return ModelInfo(
            vocab_size=len(self._pieces),
            context_length=files.positions,
            eos_token_ids=[files.eot],
            pad_token_id=files.eot,
            versions={"openvino": self._network.version},
            speech=SpeechInfo(
                languages=list(files.languages) or ["en"],
                translates=TRANSLATE in files.tasks,
                max_tokens=files.positions - 4,
                max_prompt_tokens=files.positions // 2 - 1 if files.prev >= 0 else 0,
                capabilities=capabilities,
                backend="decode_loop",
            ),
        )

    def warm_up(self) -> None:
        """Compute one window. Raises StartError: a model that cannot compute is not served."""
        silence = Job(np.zeros(HOP, np.float32), 0.0, TranscribeParams(fallback=False), max_tokens=2)
        try:
            self.start([silence])
            while not silence.done:
                self.step()
        except RuntimeError as error:
            raise StartError(f"the model does not compute: {last_line(error)}") from error

    # --- Recognizer

    def check(self, params: TranscribeParams) -> None:
        known = self.info.speech.languages if self.info.speech is not None else []
        if params.language and params.language not in known:
            raise BadRequest(
                f"The model does not know the language {params.language!r}, only {', '.join(known)}", param="language"
            )
        if params.task == TRANSLATE and TRANSLATE not in self._files.tasks:
            raise BadRequest("The model does not translate", param="model")
        if params.words and not self._files.heads:
            raise BadRequest("Word timestamps not supported for this model", param="timestamp_granularities")
        if params.beams > 1:
            raise BadRequest("Beam search is not supported for this model", param="use_beam_search")

    def room(self, live: bool) -> bool:
        decoding = [row for group in self._groups for row in group.rows if not row.job.cancelled]
        if len(decoding) + sum(not row.job.cancelled for row in (*self._new, *self._encoded)) >= SLOTS:
            return False
        return live or all(row.job.params.live for row in decoding)

    def start(self, jobs: list[Job]) -> None:
        for job in jobs:
            prompt = self._prompt(job.prompt, job.params.hotwords)
            self._new.append(Row(job, self._files, self._pieces, prompt))

    def step(self) -> None:
        """Encode a window, if one is new; else a token of each row."""
        self._new = [row for row in self._new if not row.job.cancelled]
        if self._new:
            row = self._new.pop(0)
            row.hidden = self._network.encode(self._mel(row.job.samples))
            self._encoded.append(row)
            return
        if self._encoded:
            self._begin([row for row in self._encoded if not row.job.cancelled])
            self._encoded = []
        for group in self._groups:
            for row in group.step():
                if not row.job.cancelled:
                    self._ended(row)
        self._groups = [group for group in self._groups if group.rows]

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        if skip_special_tokens:
            tokens = [token for token in tokens if token < self._files.eot]
        return b"".join(self._pieces[token] for token in tokens).decode("utf-8", "replace")

    def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        before, after = self._tokenizer.single if add_special_tokens else ((), ())
        return [[*before, *ids.tolist(), *after] for ids in self._tokenizer.encode(texts)]

    # --- internals

    def _prompt(self, prompt: str, hotwords: str) -> list[int]:
        """The tokens before <|startoftranscript|>; of a long text the last ones. Special tokens in it are left out."""
        files = self._files
        texts = [SPECIAL.sub("", text).strip() for text in (prompt, hotwords)]
        wanted = [f" {text}" for text in texts if text]
        if not wanted or files.prev < 0:
            return []
        ids = [int(token) for one in self._tokenizer.encode(wanted) for token in one if token < files.eot]
        return [files.prev, *ids[-(files.positions // 2 - 1) :]]

    def _begin(self, rows: list[Row]) -> None:
        """Groups of rows that have equally long prompts."""
        kinds: dict[tuple[int, bool], list[Row]] = {}
        for row in rows:
            kinds.setdefault((len(row.prompt), row.job.times), []).append(row)
        for members in kinds.values():
            hidden = np.concatenate([row.hidden for row in members if row.hidden is not None])
            self._groups.append(Group(members, self._network.begin(hidden), self._files, self._rules))

    def _ended(self, row: Row) -> None:
        if not row.credible():
            row.again()
            self._encoded.append(row)
            return
        words = None
        if row.job.times and row.job.params.words and row.hidden is not None:
            words = word_times(row, self._files, self._pieces, self._attention(row))
        row.finish(words)

    def _attention(self, row: Row) -> Callable[[list[int]], NDArray[np.float32]]:
        return lambda ids: self._network.attention(row.hidden, ids, self._files.heads)
