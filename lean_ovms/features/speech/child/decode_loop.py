"""The recognizer of Whisper models, which decodes windows of several requests together with the exported networks.

Windows are encoded one by one. Those that were waiting are then decoded as a group: each step decodes a token of each,
and a window leaves the group when it has ended. The decoder has no mask, so the rows of a group have equally many
tokens, and none can join later; the next group of files begins when the last one has ended. Windows that should not
wait are in a queue with groups of its own, which gets every other step.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import asdict
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from ....errors import counted, for_client
from ....types.engine import ModelInfo, Vocabulary
from ..params import TRANSLATE, SpeechInfo, TranscribeParams
from .alignment import word_times
from .decode_groups import BeamGroup, DecodeGroup, DecodeQueue
from .decode_rows import DecodeRow
from .logits import Rules
from .mel import LogMel
from .recognizer import Job, plain
from .whisper_files import HOP, WhisperFiles

log = logging.getLogger(__name__)

SLOTS = 8
"""The most windows, or texts of files, that are decoded at once. Each has a state of its own in memory."""


class DecodeLoop:
    """A Recognizer that decodes the windows of several jobs in one batch."""

    def __init__(self, files: WhisperFiles, network: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
        """Keeps the parts of the model.

        Args:
            files: The sizes and special tokens of the model.
            network: The encoder and the decoder, a WhisperNetwork.
            tokenizer: The tokenizer, with the methods encode and decode.
            vocabulary: The bytes of each token.
        """
        self.vocabulary = vocabulary
        self.window = files.frames * HOP
        self._files = files
        self._network = network
        self._tokenizer = tokenizer
        self._pieces = vocabulary.pieces
        self._mel = LogMel(files.mels, files.frames)
        self._rules = Rules(files)
        self._file_queue, self._soon_queue = DecodeQueue(), DecodeQueue()
        self._turns = deque((self._file_queue, self._soon_queue))  # the queue that stepped last is at the end
        self.info = self._describe()

    def _describe(self) -> ModelInfo:
        files = self._files
        capabilities = ["logprobs", "timed_stream", "fallback", "beams"]
        if files.heads:
            capabilities.append("words")
        return ModelInfo(
            vocab_size=len(self._pieces),
            context_length=files.positions,
            eos_token_ids=[files.eot],
            pad_token_id=files.eot,
            versions={"openvino": self._network.version},
            of_task=asdict(
                SpeechInfo(
                    languages=list(files.languages) or ["en"],
                    translates=TRANSLATE in files.tasks,
                    max_tokens=files.positions - 4,
                    max_prompt_tokens=files.positions // 2 - 1 if files.prev >= 0 else 0,
                    capabilities=capabilities,
                    backend="decode_loop",
                )
            ),
        )

    def warm_up(self) -> None:
        """Transcribes a window of silence, so that the first request is not slower. Raises RuntimeError."""
        silence = Job(np.zeros(HOP, np.float32), 0.0, TranscribeParams(fallback=False), max_tokens=2)
        self.start([silence])
        while not silence.done:
            self.step()
        if silence.error is not None:
            raise RuntimeError(str(silence.error))

    def room(self, soon: bool) -> bool:
        if self._file_queue.size + self._soon_queue.size >= SLOTS:
            return False
        return soon or not self._file_queue.decoding

    def start(self, jobs: list[Job]) -> None:
        for job in jobs:
            prompt = self._prompt(job.prompt, job.params.hotwords)
            queue = self._soon_queue if job.soon else self._file_queue
            queue.new.append(DecodeRow(job, self._files, self._pieces, prompt))

    def step(self) -> None:
        """Encodes a new window if there is one, else decodes a token of each row. The two queues take turns."""
        for queue in self._turns:
            queue.drop_cancelled()
        queue = next((queue for queue in self._turns if queue.busy), self._file_queue)
        self._turns.remove(queue)
        self._turns.append(queue)
        self._advance(queue)

    def _advance(self, queue: DecodeQueue) -> None:
        if queue.new:
            row = queue.new.pop(0)
            row.hidden = self._network.encode(self._mel(row.job.samples))
            queue.encoded.append(row)
            return
        if not queue.groups:
            fitting = self._fitting(queue.encoded)
            queue.groups = self._grouped(fitting)
            queue.encoded = queue.encoded[len(fitting) :]
        if not queue.groups:
            return
        group = queue.groups[0]
        rows = group.rows
        try:
            ended = group.step()
        except Exception as error:  # any error of openvino; the state is not used again
            queue.groups.remove(group)
            failed = for_client(error, counted(len(rows), "window of audio", "windows of audio"))
            for row in rows:
                row.job.error = failed
            return
        if not group.rows:
            queue.end(group)
        for row in ended:
            self._ended(row, queue)

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        if skip_special_tokens:
            tokens = [token for token in tokens if token < self._files.eot]
        return b"".join(self._pieces[token] for token in tokens).decode("utf-8", "replace")

    def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        before, after = self._tokenizer.single if add_special_tokens else ((), ())
        return [[*before, *ids, *after] for ids in self._tokenizer.encode(texts)]

    def _prompt(self, prompt: str, hotwords: str) -> list[int]:
        """Returns the tokens of prompt and hotwords, which stand before <|startoftranscript|>.

        Of a long text only the last tokens are used, and special tokens in it are left out.
        """
        files = self._files
        wanted = [f" {text}" for text in map(plain, (prompt, hotwords)) if text]
        if not wanted or files.prev < 0:
            return []
        ids = [int(token) for one in self._tokenizer.encode(wanted) for token in one if token < files.eot]
        return [files.prev, *ids[-(files.positions // 2 - 1) :]]

    def _fitting(self, encoded: list[DecodeRow]) -> list[DecodeRow]:
        """Returns the first encoded rows, as many as may be decoded at once, but at least one."""
        texts = list(accumulate(row.width for row in encoded))
        return encoded[: max(1, sum(count <= SLOTS for count in texts))]

    def _grouped(self, rows: list[DecodeRow]) -> list[DecodeGroup | BeamGroup]:
        """Makes groups of rows with equally long prompts. A row with beam search is a group of its own."""
        self._detect_languages([row for row in rows if row.prompt and self._files.languages and not row.language])
        kinds: dict[tuple[int, bool], list[DecodeRow]] = {}
        found: list[DecodeGroup | BeamGroup] = []
        for row in rows:
            if row.job.params.beams > 1:
                found.append(BeamGroup(row, self._network, self._files, self._rules))
            else:
                kinds.setdefault((len(row.prompt), row.job.times), []).append(row)
        return found + [DecodeGroup(members, self._network, self._files, self._rules) for members in kinds.values()]

    def _detect_languages(self, rows: list[DecodeRow]) -> None:
        """Detects the languages of rows without their prompts, whose languages would mostly be found instead."""
        if not rows:
            return
        decoding = self._network.begin(np.concatenate([row.hidden for row in rows if row.hidden is not None]))
        for row, logits in zip(rows, decoding.step(np.full((len(rows), 1), self._files.sot)), strict=True):
            row.detect_language(logits[-1])
        decoding.close()

    def _ended(self, row: DecodeRow, queue: DecodeQueue) -> None:
        if not row.settle():
            queue.encoded.append(row)
            return
        segments = row.segments()
        words = None
        if row.job.times and row.job.params.words and row.hidden is not None:
            attention = partial(self._network.attention, row.hidden, heads=self._files.heads)
            words = word_times(row, segments, self._files, self._pieces, attention)
        row.finish(segments, words)
