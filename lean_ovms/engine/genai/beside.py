"""Long texts to ids without the interpreter's lock, which GenAI's tokenizer holds for the whole of a call.

The same graph, openvino_tokenizer.xml, is compiled once more by openvino, with the first long text (0.2 s; a text of a
million characters then takes 0.3 s). It is compared with GenAI's tokenizer before it is used.
"""

from __future__ import annotations

import logging
from array import array
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import numpy as np
import openvino as ov

from ...errors import BadRequest
from ..errors import last_line
from .ir import Graph, NotUnderstood
from .text_encoder import TOKENIZER, Encode, TextEncoder, token_limit

log = logging.getLogger(__name__)

LONG_CHARACTERS = 16384
"""Of a text whose ids are not known: tokenizing fewer on the step loop takes 5 to 20 ms."""
PROPERTIES = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False}
SAMPLES = (
    "a",
    "It's 2026, and  nobody\r\n\n isn't here.\t x_y = 10**3  # \u4e2d\u6587 caf\u00e9 e\u0301 \U0001f600",
    "zzzzqqqqq" * 50,
    " \n" * 50,
)
MOST_SAMPLED = 1 << 16
"""Tokens of a limit that is tried."""


def make(model_dir: Path, ask: Encode, encode: Encode) -> BesideEncoder | None:
    """None for a tokenizer without a graph in a file. ask: GenAI's tokenizer. encode: for short texts."""
    try:
        limit = token_limit(Graph(model_dir / f"{TOKENIZER}.xml"))
    except (NotUnderstood, OSError, ParseError, ValueError, KeyError, IndexError) as reason:
        log.debug("long texts keep the step loop waiting: %s", reason)
        return None
    return BesideEncoder(model_dir, ask, encode if isinstance(encode, TextEncoder) else None, limit)


def _extension() -> str:
    """The library of the tokenizers' operators. Importing openvino_tokenizers for its path would take a second."""
    found = find_spec("openvino_tokenizers")
    folder = Path(found.origin or "").parent / "lib" if found else Path()
    for file in folder.glob("*openvino_tokenizers.*"):
        return str(file)
    raise OSError("openvino_tokenizers has no library")


class BesideEncoder:
    """A generation.pipeline.BesideEncoder. ask: GenAI's tokenizer. texts: knows the ids of some segments of texts."""

    def __init__(self, model_dir: Path, ask: Encode, texts: TextEncoder | None, limit: int) -> None:
        self._file = model_dir / f"{TOKENIZER}.xml"
        self._ask = ask
        self._texts = texts
        self._limit = limit
        self._request: Any = None
        self._tried = False
        self._frame: tuple[int, int] = (0, 0)  # special tokens before and after a text

    def is_long(self, text: str) -> bool:
        if len(text) <= LONG_CHARACTERS:
            return False
        return self._texts is None or self._texts.unknown(text) > LONG_CHARACTERS

    def encode(self, text: str, add_special_tokens: bool) -> array[int]:
        if not self._tried:
            self._tried = True
            self._compile()
        if self._request is None:
            return array("i", self._ask(text, add_special_tokens))
        ids = self._by_graph(text)
        return ids if add_special_tokens else self._without_frame(ids)

    def learn(self, text: str, ids: list[int], add_special_tokens: bool) -> None:
        if self._texts is not None:
            self._texts.learn(text, ids, add_special_tokens)

    def _by_graph(self, text: str) -> array[int]:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadRequest("the text is not valid Unicode (lone surrogates)") from None
        self._request.infer([ov.Tensor([text])], share_inputs=True, share_outputs=True)
        return array("i", self._request.get_tensor("input_ids").data.astype(np.int32).tobytes())

    def _without_frame(self, ids: array[int]) -> array[int]:
        before, after = self._frame
        return ids[before : len(ids) - after] if before or after else ids

    def _compile(self) -> None:
        try:
            core = ov.Core()
            core.set_property({"ENABLE_MMAP": False})  # no descriptor that stays open
            core.add_extension(_extension())
            self._request = core.compile_model(self._file, "CPU", PROPERTIES).create_infer_request()
            if self._agrees():
                return
            reason = "its ids differ"
        except (RuntimeError, OSError, TypeError) as error:
            reason = last_line(error)
        log.info("long texts keep the step loop waiting: the tokenizer's graph cannot be used beside it: %s", reason)
        self._request = None

    def _agrees(self) -> bool:
        """Whether the graph has the ids of GenAI's tokenizer, with special tokens and without."""
        framed, plain = self._ask("a", True), self._ask("a", False)
        place = next((n for n in range(len(framed)) if framed[n : n + len(plain)] == plain), 0)
        self._frame = place, len(framed) - place - len(plain)
        samples = [*SAMPLES, "a b " * self._limit] if self._limit <= MOST_SAMPLED else list(SAMPLES)
        for text in samples:
            ids = self._by_graph(text)
            if ids.tolist() != self._ask(text, True) or self._without_frame(ids).tolist() != self._ask(text, False):
                return False
        return True
