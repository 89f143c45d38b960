"""A model's exported tokenizer and detokenizer (openvino_tokenizer.xml), run by openvino without the interpreter lock.

The special tokens that the graph would add are removed from it and kept in `single`. They are added again after the ids
of a text have been joined and cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from ...errors import NOT_UNICODE, BadRequest, StartError, last_line
from .quiet_imports import TOKENIZERS
from .settings import TOKENIZER_PROPERTIES

NO_LIMIT = (1 << 31) - 1


class GraphTokenizer:
    """A tokenizer that runs as an OpenVINO graph."""

    def __init__(self, model_dir: Path, core: ov.Core | None = None) -> None:
        """Compiles the tokenizer in a model's directory. Raises StartError."""
        try:
            if core is None:
                core = ov.Core()
                core.set_property({"ENABLE_MMAP": False})  # no descriptor that stays open
            core.add_extension(TOKENIZERS)
            model = core.read_model(model_dir / "openvino_tokenizer.xml")
            single = _take_special_tokens(model)
            _take_limit(model)
            self._request = core.compile_model(model, "CPU", TOKENIZER_PROPERTIES).create_infer_request()
            self._core, self._detokenizer_file = core, model_dir / "openvino_detokenizer.xml"
        except (RuntimeError, OSError) as error:
            raise StartError(f"the tokenizer does not load: {last_line(error)}") from error
        self._stripped = (0, 0)  # tokens at the start and end of every text that could not be taken out of the IR
        self.single = self._measured() if single is None else single
        """The ids that the model's tokenizer puts before and after a text."""
        self._detokenizer: Any = None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text, without special tokens. Raises BadRequest."""
        request = self._request
        try:
            for text in texts:
                text.encode()
        except UnicodeEncodeError:
            raise BadRequest(NOT_UNICODE) from None
        request.infer([ov.Tensor(list(texts))])
        ids = request.get_tensor("input_ids").data
        mask = request.get_tensor("attention_mask").data
        counts = mask.sum(axis=1).tolist()
        before, after = self._stripped
        found: list[list[int]] = []
        for row, count in enumerate(counts):
            start = 0 if not count or mask[row, 0] else ids.shape[1] - count  # padded at the right, or the left
            found.append(ids[row, start + before : start + count - after].tolist())
        return found

    def decode(self, tokens: list[int]) -> str:
        """Returns the text of these ids, without special tokens."""
        if self._detokenizer is None:
            decoder = self._core.compile_model(self._detokenizer_file, "CPU", TOKENIZER_PROPERTIES)
            self._detokenizer = decoder.create_infer_request()
        self._detokenizer.infer([np.array([tokens], np.int64)])
        return str(self._detokenizer.get_output_tensor(0).str_data[0])

    def _measured(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the special tokens around an empty text, for a graph that does not state which ones it adds."""
        empty, text = self.encode(["", "a"])
        before = 0
        while before < len(empty) and text and empty[before] == text[before]:
            before += 1
        before = min(before, 1) if len(empty) > 1 else before
        self._stripped = before, len(empty) - before
        return tuple(empty[:before]), tuple(empty[before:])


def _take_special_tokens(model: ov.Model) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Removes the special tokens from the operator that joins segments, and returns them; None if it is missing."""
    joins = [op for op in model.get_ops() if op.get_type_name() == "CombineSegments"]
    if len(joins) != 1:
        return None
    join = joins[0]
    before: list[int] = []
    after: list[int] = []
    found = before
    for at in range(0, join.get_input_size() - 1, 3):
        begin, end, data = (join.input_value(at + port).get_node() for port in range(3))
        if data.get_type_name() != "Constant":
            found = after
            continue
        ids = np.ravel(data.get_data())
        first, last = (int(np.ravel(node.get_data())[0]) for node in (begin, end))
        found += ids[first:last].tolist()
        join.input(at + 1).replace_source_output(begin.output(0))
    return tuple(before), tuple(after)


def _take_limit(model: ov.Model) -> None:
    """Makes the tokenizer never truncate. The server itself refuses or cuts a text that is too long."""
    for op in model.get_ops():
        if op.get_type_name() == "Truncate":
            place = op.get_input_size() - 3  # then: side, and which of two texts first
            source = op.input_value(place).get_node()
            limit = ov.opset13.constant(np.int32(NO_LIMIT)).output(0)
            if source.get_type_name() == "Select":  # by a state of the model, which has to stay in use
                source.input(1).replace_source_output(limit)
                source.input(2).replace_source_output(limit)
            else:
                op.input(place).replace_source_output(limit)
