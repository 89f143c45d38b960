"""Compiles grammars with openvino_genai for one tokenizer, without the model.

The engine process does so to fill the cache that its steps use, and the checker process to find out whether a grammar
can be compiled. Left alone, GenAI compiles a grammar inside the first step of its request, while all other requests
wait: 100 ms for an ordinary schema at 131k tokens, 25 s for a hostile one. Compiled grammars live in the Tokenizer
object. So a second pipeline with the same tokenizer fills the cache of the first one; its model may be a dummy with
equally wide logits. Its generate() releases the GIL. A request with another width drops the cache, which has no limit
of its own.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from openvino import opset13 as ops
from openvino.op.util import Variable, VariableInfo

from .....config import EngineConfig
from .....engine.paged.network import network_input
from .....engine.paged.parts import NoGrammars
from .....errors import GrammarInvalid, StartError, last_line
from .....repository import model_file
from .....repository.model_config import TEXT_MODEL, TEXT_NETWORKS
from .....util import resources
from ...feature import StructuredOutputOptions
from ..checker import CheckerSettings, ProcessGrammarChecker
from ..structural_tag import PlainFormat
from .sentencepiece import has_byte_fallback, rewritten

if TYPE_CHECKING:
    from ..queue import GrammarQueue

log = logging.getLogger(__name__)

HEAD = 16
"""Size of the stand-in's only attention head; the CPU plugin's smallest."""
BLOCKS = 4
COMMAND = (sys.executable, "-m", f"{__package__}.process")
"""The command of the process that checks grammars."""


class GrammarCompiler:
    """Fills and empties the grammar cache of a tokenizer. It is not thread-safe."""

    def __init__(self, tokenizer: Any, width: int, *, byte_fallback: bool = False) -> None:
        """Makes a compiler for the tokenizer's vocabulary.

        Args:
            tokenizer: The tokenizer of the pipeline that uses the grammars.
            width: The number of logits of a token in that pipeline.
            byte_fallback: Whether the vocabulary is SentencePiece's, with "▁" for a space and "<0x0A>" for a byte.

        Raises:
            RuntimeError: The compiler cannot be made.
        """
        self.byte_fallback = byte_fallback
        self._right = _pipeline(tokenizer, width)
        self._other = _pipeline(tokenizer, width + 1)
        self.clear()

    def compile(self, tag: str) -> None:
        """Compiles a structural tag (JSON text), and releases the GIL meanwhile. Raises GrammarInvalid."""
        try:
            self._run(self._right, tag)
        except (RuntimeError, ValueError) as error:
            raise GrammarInvalid(reason(error)) from error

    def walk(self, tag: str, seed: int, tokens: int) -> Generator[float, None, None]:
        """Generates random tokens that a grammar allows, and yields the CPU seconds of each step.

        The first step includes GenAI's work at the beginning of a request with the grammar. Raises RuntimeError.
        """
        config = genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.do_sample, config.temperature, config.rng_seed = True, 1.0, seed
        config.structured_output_config = structured(tag, self.byte_fallback)
        pipeline = self._right
        handle = pipeline.add_request(seed, ov.Tensor(np.zeros((1, 1), dtype=np.int64)), config)
        try:
            while pipeline.has_non_finished_requests():
                began = time.process_time()
                pipeline.step()
                yield time.process_time() - began
        finally:
            handle.cancel()
            while pipeline.has_non_finished_requests():
                pipeline.step()

    def clear(self) -> None:
        """Drops all compiled grammars, which takes 2 ms and 1 ms for each MB. It must not be called during a step."""
        self._run(self._other, None)
        self._run(self._right, None)  # otherwise the next step would have to set the width again
        resources.trim()

    def _run(self, pipeline: Any, tag: str | None) -> None:
        config = genai.GenerationConfig()
        config.max_new_tokens = 1
        config.ignore_eos = True
        if tag is not None:
            config.structured_output_config = structured(tag, self.byte_fallback)
        pipeline.generate([ov.Tensor(np.zeros((1, 1), dtype=np.int64))], [config])


class GenAiGrammars:
    """The grammars of the pipelines of openvino_genai with one tokenizer."""

    def __init__(self, compiler: GrammarCompiler, checker: ProcessGrammarChecker) -> None:
        """Keeps the pipelines' compiler, and the checker, which checks grammars in another process before."""
        self.compiler = compiler
        self.checker = checker

    def new_queue(self, wake: Callable[[], None], config: EngineConfig) -> GrammarQueue:
        """Returns a new queue of requests that wait for their grammars; `wake` ends the wait of the engine's loop."""
        from ..queue import GrammarQueue  # late, because many models never need grammars

        return GrammarQueue(self.compiler, self.checker, wake, config)

    def native(self, tag: str) -> Any:
        """Returns a structural tag (JSON text) as GenerationConfig.structured_output_config."""
        return structured(tag, self.compiler.byte_fallback)


def structured(tag: str, byte_fallback: bool) -> Any:
    """Returns a structural tag (JSON text) as GenerationConfig.structured_output_config."""
    return genai.StructuredOutputConfig(structural_tags_config=lowered(tag, byte_fallback)[0])


@lru_cache(maxsize=64)
def lowered(tag: str, byte_fallback: bool) -> tuple[str, tuple[str, ...]]:
    """Rewrites a tag for GenAI's XGrammar. Returns it, and notices of what is not enforced. Raises ValueError."""
    form = json.loads(tag)["format"]
    found = PlainFormat(rewritten(form) if byte_fallback else form, within_genai=True)
    return json.dumps({"type": "structural_tag", "format": found.form}, ensure_ascii=False), found.notices


def logits_width(model_dir: Path) -> int:
    """Returns the number of logits that the network computes for a token, padding included. Raises RuntimeError.

    GenAI drops its cache if a request has another width, and vocab_size in config.json may differ from the network's.
    """
    if (file := model_file.of(model_dir)) is not None:
        return file.logits_width()
    networks = (model_dir / name for name in TEXT_NETWORKS)
    network = next((path for path in networks if path.is_file()), model_dir / TEXT_MODEL)
    output = ov.Core().read_model(network).output("logits")
    return int(output.get_partial_shape()[2].get_length())


def grammars(config: EngineConfig, tokenizer: Any) -> GenAiGrammars | NoGrammars:
    """Returns the grammars of the pipelines with this tokenizer, or NoGrammars if their compiler does not work.

    Raises StartError if the options ask for another grammar library.
    """
    if config.of(StructuredOutputOptions).structured_output_backend == "guidance":
        raise StartError(
            "--structured_output_backend guidance needs --pipeline_type PAGED; openvino-genai always uses XGrammar"
        )
    try:
        width = logits_width(config.model_dir)
        compiler = GrammarCompiler(tokenizer, width, byte_fallback=has_byte_fallback(config.model_dir))
    except (RuntimeError, TypeError, ValueError, OSError) as error:
        log.warning("structured output is not available for this model: %s", last_line(error))
        return NoGrammars()
    settings = CheckerSettings.of(config, width, probe_s=1.0)
    return GenAiGrammars(compiler, ProcessGrammarChecker(settings, COMMAND))


def reason(error: Exception) -> str:
    """Returns the message of an error of xgrammar, without the path of its source file."""
    text = last_line(error)
    if text.startswith("[") and ".cc:" in text:
        text = text.partition(".cc:")[2].partition(": ")[2]
    for start in ("Failed to create grammar from structural tag: ", "Check failed: "):
        text = text.removeprefix(start)
    return text[:500] or "the grammar cannot be compiled"


def _pipeline(tokenizer: Any, width: int) -> Any:
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = BLOCKS
    with tempfile.TemporaryDirectory(prefix="lean_ovms_") as folder:
        ov.save_model(stand_in(width), Path(folder) / TEXT_MODEL)
        return genai.ContinuousBatchingPipeline(folder, tokenizer, scheduler, "CPU", INFERENCE_NUM_THREADS=1)


def stand_in(width: int) -> ov.Model:
    """Makes the smallest language model, with one attention head, a KV cache, and logits of zero, in 1 ms."""
    ids = network_input("input_ids", [-1, -1], np.int64)
    mask = network_input("attention_mask", [-1, -1], np.int64)
    positions = network_input("position_ids", [-1, -1], np.int64)
    beams = network_input("beam_idx", [-1], np.int32)
    number = ops.unsqueeze(ops.convert(ops.add(ids, positions), np.float32), _ints([1, 3]))
    state = ops.multiply(number, ops.constant(np.full((1, 1, 1, HEAD), 1e-3, np.float32)))
    batch = ops.gather(ops.shape_of(ids), _ints([0]), _ints(0))
    empty = ops.broadcast(ops.constant(np.float32(0)), ops.concat([batch, _ints([1]), _ints([0]), _ints([HEAD])], 0))
    keys, keep_keys = _cached("key", state, empty, beams)
    values, keep_values = _cached("value", state, empty, beams)
    visible = ops.convert(ops.unsqueeze(mask, _ints([1, 2])), np.float32)
    attended = ops.scaled_dot_product_attention(state, keys, values, visible, causal=False)
    nothing = ops.multiply(ops.reduce_sum(attended, _ints([1, 3]), False), ops.constant(np.float32(0)))
    logits = ops.add(ops.unsqueeze(nothing, _ints(2)), ops.constant(np.zeros((1, 1, width), np.float32)))
    result = ops.result(logits)
    result.output(0).set_names({"logits"})
    return ov.Model([result], [keep_keys, keep_values], [ids, mask, positions, beams], "stand_in")


def _ints(value: Any) -> Any:
    return ops.constant(np.array(value, dtype=np.int64))


def _cached(name: str, state: Any, empty: Any, beams: Any) -> tuple[Any, Any]:
    """Appends a state to the cache with this name, and returns the result and the node that stores it."""
    info = VariableInfo()
    info.data_shape = ov.PartialShape([-1, 1, -1, HEAD])
    info.data_type = ov.Type.f32
    info.variable_id = f"past_key_values.0.{name}present.0.{name}"
    variable = Variable(info)
    past = ops.gather(ops.read_value(empty, variable), beams, _ints(0))
    whole = ops.concat([past, state], 2)
    return whole, ops.assign(whole, variable)
