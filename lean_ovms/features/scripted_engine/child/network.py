"""A Network without weights, whose logits make the script's next token the likeliest. Independent of openvino."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....engine.generation import fake_tokenizer as words
from ....engine.paged.network import LOGITS_INPUT, Network, Part
from ....engine.paged.sequence import Sequence

NEVER_S = 1e6
LONG_INPUTS = ("input_ids", "position_ids", LOGITS_INPUT)
"""The inputs with 64-bit numbers; all others have 32 bits."""
INPUTS = (
    *LONG_INPUTS,
    *("past_lens", "subsequence_begins", "block_indices", "block_indices_begins", "max_context_len"),
)


def _lines() -> NDArray[np.float32]:
    """Returns logits [vocab, vocab]. In each row one token is by far the likeliest, followed by the tokens after it."""
    size = words.VOCAB_SIZE
    lines = np.full((size, size), -40.0, np.float32)
    for token in range(size):
        for place in range(8):
            lines[token, (token + place) % size] = -10.0 * (place > 0) - place
    return lines


@dataclass(slots=True)
class Tensor:
    """An input of the network and its memory: a `paged.network.InferTensor`."""

    data: NDArray[Any]
    """The memory."""
    shape: Any
    """The shape of the part that is in use."""


class ScriptedNetwork(Network):
    """A Network that returns `answers`. A prompt with one of fake_tokenizer.TRICKS makes its step fail."""

    vocab_size = words.VOCAB_SIZE
    image_shape = (0, 0)
    hybrid = False
    position_rows = 1
    hidden = np.zeros((0, 0), np.float32)
    inputs = frozenset(INPUTS)

    def __init__(self, step_s: float) -> None:
        """Creates a network whose steps take this many seconds."""
        self.adapting = False
        self.new_states: list[int] = []
        self.step_states: list[int] = []
        self.batch: Callable[[], list[Sequence]] = list
        """Returns the sequences of the step in the order of the inputs; set by the engine."""
        self.answers: dict[int, dict[int, list[int]]] = {}
        """The token ids of the answers, by the request's id and the index of the choice; set by the engine."""
        self._step_s = step_s
        self.lines = _lines()
        """The logits [vocab, vocab], by the token that comes next."""
        self._tensors: dict[str, Tensor] = {}

    def allocate(self, blocks: int, states: int) -> None:
        """Does nothing, since there are no keys and values."""

    def tensor(self, name: str, shape: list[int]) -> Tensor:
        made = Tensor(np.zeros(shape, np.int64 if name in LONG_INPUTS else np.int32), shape)
        self._tensors[name] = made
        return made

    def write(self, name: str, shape: tuple[int, int], parts: Iterable[Part]) -> None:
        raise NotImplementedError("there are no inputs of matrices")

    def infer(self, prompts: bool) -> NDArray[np.float32]:
        self.start(prompts)
        return self.wait()

    def start(self, prompts: bool) -> None:
        if not prompts:
            return
        tokens = set(self._input("input_ids").tolist())
        if words.HANG in tokens:
            time.sleep(NEVER_S)
        if words.DIE in tokens:
            os._exit(9)
        if words.RAISE in tokens:
            raise RuntimeError("Exception from src/cpp/src/scripted.cpp:1:\n/somewhere/build/x.cpp:2\nscripted failure")

    def wait(self) -> NDArray[np.float32]:
        if self._step_s:
            time.sleep(self._step_s)
        begins, past = self._input("subsequence_begins"), self._input("past_lens").tolist()
        wanted, batch = self._input(LOGITS_INPUT), self.batch()
        owners = np.searchsorted(begins, wanted, "right") - 1
        offsets = (wanted - begins[owners]).tolist()
        following = [
            self._token(batch[owner], past[owner] + offset + 1)
            for owner, offset in zip(owners.tolist(), offsets, strict=True)
        ]
        return self.lines[following]

    def copy_block(self, source: int, target: int) -> None:
        """Does nothing, since blocks have no content."""

    def block_buffers(self, block: int) -> list[NDArray[np.uint8]]:
        return []

    def state_buffers(self, slot: int) -> list[NDArray[np.uint8]]:
        return []

    def clear_state(self, slot: int) -> None:
        """Does nothing, since there are no states."""

    def _input(self, name: str) -> NDArray[Any]:
        tensor = self._tensors[name]
        return tensor.data[: tensor.shape[0]]

    def _token(self, sequence: Sequence, place: int) -> int:
        """Returns the token at an index of a sequence: of the prompt, then of the answer, and <eos> after it."""
        if place < sequence.prompt:
            return sequence.ids[place]
        ids = self.answers[sequence.request.id][0 if sequence.beams else sequence.index]
        made = place - sequence.prompt
        return ids[made] if made < len(ids) else words.EOS
