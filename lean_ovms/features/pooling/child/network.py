"""The network of a pooling model in OpenVINO, whose graph includes pooling: batches of ids in, rows of numbers out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import openvino as ov

from ....config import EngineConfig
from ....config.options import read_object
from ....engine.loading import weight_pages
from ....engine.loading.pipeline_choice import as_start_error, network
from ....engine.loading.settings import device_of, device_properties, kept_shapes, network_bytes
from ....engine.paged import input_embeddings
from ....engine.paged.network import IMAGE_DEEPER, IMAGE_PLACES, IMAGE_ROWS, file_of
from ....errors import StartError
from ....repository.model_config import LANGUAGE_MODEL
from ..types import AND, IMAGES_ALONE, IMAGES_IN_TEXT
from . import pooling_graph
from .infer_runner import InferRequestPool, InferRunner, LazyCompiledModel
from .model_kind import ALL, MODEL, Shape
from .pooler import Batch
from .pooling_graph import DenseLayer

TEXT, IMAGE = "text_embeds", "image_embeds"
"""Outputs of a network of two towers, such as CLIP's."""
OUTPUTS = ("sentence_embedding", "logits", "last_hidden_state", "token_embeddings", TEXT)
"""Outputs that are used, the first that a network has."""
HIDDEN = ("last_hidden_state", "token_embeddings")
IMAGE_INPUTS = (IMAGE_ROWS, IMAGE_PLACES, IMAGE_DEEPER)
INPUTS = {"input_ids", "attention_mask", "token_type_ids", "position_ids", "beam_idx", *IMAGE_INPUTS}
MOST_STREAMS = 8
"""Passes at once, where nobody has said how many: a text takes longer with fewer threads."""
SMALL_BYTES = (8 << 20, 150 << 20)
"""Sizes of a network that is compiled more than once. One of 90 MB takes 50 to 150 MB of memory each time; below the
first size a pass takes less time than threads need for taking turns."""
SHORT = 32
"""The length in tokens of inputs of the network for single short texts, to which these are padded."""
SHORTS = 4
"""The number of short texts, each computed alone, after which that network is compiled."""


CHANGE_TOKENS = 32
"""openvino prepares every layer anew when a batch has another shape than the one before. For all-MiniLM-L6-v2 on two
cores that takes as long as this much padding: 2.2 of 9.6 ms (2026-11)."""


class PaddedLength:
    """Chooses the padded length of texts that are computed alone, one after the other.

    A shorter text is padded to the length of the one before it, until the padding so far has cost as much as a change
    of the shape would.
    """

    def __init__(self) -> None:
        self._last = self._wasted = 0

    def size(self, needed: int) -> int:
        """Returns the padded length of the next text, which has `needed` tokens."""
        wasted = self._last - needed
        if wasted < 0 or self._wasted + wasted > CHANGE_TOKENS:
            self._last, self._wasted = needed, 0
        else:
            self._wasted = self._wasted + wasted if wasted else 0
        return self._last


class PoolingNetwork:
    """The compiled networks of one model. `pool` or `compare_tokens` is called first, then batches are computed.

    A small model is compiled up to three times. The second and the third are compiled in a thread when there is work
    for them. The figures are of all-MiniLM-L6-v2 on two cores (2026-11):
    - for any shape, one batch at a time with all threads;
    - for any shape, several batches at once with one thread each: a fifth to a third more texts a second, as no thread
    waits for another;
    - for one text of up to SHORT tokens: 6.3 ms, where the first network takes 7.3 ms, or 9.5 ms after another length.
    """

    def __init__(self, core: ov.Core, config: EngineConfig) -> None:
        """Compiles the network of a model's directory. Raises StartError."""
        self._core = core
        self._config = config
        language = config.model_dir / LANGUAGE_MODEL
        self._path = language if language.is_file() else network(config.model_dir)
        self._device, self._properties = device_of(config), kept_shapes(config) | device_properties(config)
        self._has_towers = False
        with as_start_error(config):
            self.model = self._read()
        weight_pages.keep(self.model)
        self._configured = self._most = _streams(self._properties)
        self._pooled: InferRequestPool | None = None
        self._streamed: LazyCompiledModel | None = None
        self._short: LazyCompiledModel | None = None
        self._padded_length = PaddedLength()
        self._hidden: InferRequestPool | None = None
        self._images: InferRequestPool | None = None
        self._passes = InferRunner()
        self.wait = self._passes.wait

    def _read(self) -> ov.Model:
        """Reads the network that computes texts, before it is compiled. Raises StartError and RuntimeError."""
        if (single := file_of(self._path)) is not None:
            output = "logits" if self._config.task in ("rerank", "classify") else HIDDEN[0]
            return single.pooling_network(output, exact=self._config.batch_invariant)
        model = self._core.read_model(self._path)
        pooling_graph.tabulate_buckets(model, self._core)
        if self._path.name == LANGUAGE_MODEL:
            pooling_graph.headless(model, HIDDEN[0])
            input_embeddings.connect(model, self._core, self._path.parent, paged=False)
        self._has_towers = IMAGE in pooling_graph.names(model)
        return pooling_graph.tower(model, TEXT) if self._has_towers else model

    def read_images(self, window: int, pad_token: int | None) -> None:
        """Compiles the network of images of a model with two towers. It is called before `pool`.

        Args:
            window: The tokens after which the network cuts a text, padding included.
            pad_token: The token with which shorter texts are padded to the window; None if they are not padded.

        Raises:
            StartError: The network of images cannot be compiled.
        """
        with as_start_error(self._config):
            pooling_graph.fit(self.model, window, pad_token)
            images = pooling_graph.tower(self._core.read_model(self._path), IMAGE)
            compiled = self._core.compile_model(images, self._device, self._properties)
        self._images = InferRequestPool(compiled, max(self._configured, MOST_STREAMS))

    def shape(self, *, unpooled: bool) -> Shape:
        """Returns the network's inputs and output, by which its kind is recognized. Raises StartError for others.

        An output with one vector for each token is preferred to a pooled one if `unpooled` is set.
        """
        inputs = frozenset(one.get_any_name() for one in self.model.inputs)
        if "input_ids" not in inputs or not inputs <= INPUTS:
            raise StartError(f"the network's inputs, {', '.join(sorted(inputs))}, are not those of a text model")
        outputs = pooling_graph.names(self.model)
        found = next((name for name in ((*HIDDEN, *OUTPUTS) if unpooled else OUTPUTS) if name in outputs), "")
        if not found:
            raise StartError(f"the network has none of the outputs {', '.join(OUTPUTS)}")
        form = self.model.output(found).get_partial_shape()
        width = form[len(form) - 1]
        images = IMAGES_ALONE if self._has_towers else IMAGES_IN_TEXT if IMAGE_ROWS in inputs else ""
        length = width.get_length() if width.is_static else 0
        return Shape(inputs, found, len(form), length, images, not outputs.isdisjoint(HIDDEN))

    def image_shape(self) -> tuple[int, int]:
        """Returns how many layers besides the first get embeddings of images, and the length of an embedding."""
        shapes = {one.get_any_name(): one.get_partial_shape() for one in self.model.inputs}
        layers = shapes[IMAGE_DEEPER][0].get_length() if IMAGE_DEEPER in shapes else 0
        return layers, shapes[IMAGE_ROWS][1].get_length()

    # --- what it computes

    def pool(self, output: str, mode: str, layers: Sequence[DenseLayer] = (), *, pools_prompts: bool = True) -> None:
        """Adds pooling to the network, so that it returns one row for each input or each token, and compiles it.

        Args:
            output: The name of the output from which the rows are computed.
            mode: The pooling mode, or several joined by AND. "" or MODEL: it is pooled already; ALL: each token's row.
            layers: The layers that the rows go through.
            pools_prompts: Whether all tokens of a text are pooled, or only those that Batch.pooled has.

        Raises:
            StartError: The network cannot be compiled.
        """
        if not pools_prompts:
            pooling_graph.add_pooled_tokens(self.model)

        def rows(model: ov.Model) -> ov.Output:
            found = model.output(output)
            if mode not in ("", MODEL, ALL):
                found = pooling_graph.pooled(model, found, mode.split(AND))
            return pooling_graph.projected(found, layers) if layers else found

        self._compile(rows)

    def compare_tokens(self, tokens: list[int]) -> None:
        """Makes the network return the logit of the last of one or two tokens, minus that of the other one, at the last
        token of each input, and compiles it.

        Raises StartError if the network cannot be compiled.
        """
        self._compile(lambda model: pooling_graph.difference(model, tokens))

    def _compile(self, output: Callable[[ov.Model], ov.Output]) -> None:
        """Compiles the network with the given function's output as its only one. Raises StartError."""
        with as_start_error(self._config):
            pooling_graph.only(self.model, output(self.model))
            compiled = self._core.compile_model(self.model, self._device, self._properties)
        self._pooled = InferRequestPool(compiled, self._configured)
        configured = self._config.num_streams or "NUM_STREAMS" in read_object(
            "plugin_config", self._config.plugin_config
        )
        # Several at once are worth it unless the network is tiny, or so large that each takes much memory.
        several = SMALL_BYTES[0] <= network_bytes(self._path) < SMALL_BYTES[1]
        if several and not configured and self._device == "CPU":
            self._most = min(MOST_STREAMS, int(compiled.get_property("INFERENCE_NUM_THREADS")))
            if self._most > 1:
                self._streamed = LazyCompiledModel("several batches at once", self._compile_streams)
            if not self._pooled.stateful:
                self._short = LazyCompiledModel("single short texts", self._compile_short, after=SHORTS)

    def _hidden_states(self) -> InferRequestPool:
        """Returns the network with one row per token, which the first request for it compiles. Raises RuntimeError."""
        if self._hidden is None:
            model = self._read()
            found = next(name for name in HIDDEN if name in pooling_graph.names(model))  # else no request asks for it
            pooling_graph.only(model, model.output(found))
            self._hidden = InferRequestPool(self._core.compile_model(model, self._device, self._properties), self._most)
        return self._hidden

    # --- several passes at once

    @property
    def slots(self) -> int:
        """The number of batches that can be computed at once."""
        return self._configured if self._streamed is None or self._streamed.get() is None else self._most

    def widen(self) -> None:
        """Begins to compile the network in a thread for several batches at once, if worthwhile; then `slots` grows."""
        if self._streamed is not None:
            self._streamed.needed()

    def _compile_streams(self) -> InferRequestPool:
        several = {**self._properties, "NUM_STREAMS": self._most}
        return InferRequestPool(self._core.compile_model(self.model, self._device, several), self._most)

    def _compile_short(self) -> InferRequestPool:
        model = self.model.clone()
        model.reshape({one.get_any_name(): [1, SHORT] for one in model.inputs})
        return InferRequestPool(self._core.compile_model(model, self._device, self._properties), 1)

    # --- one text

    def padded_length(self, needed: int) -> int:
        """Returns the padded length of a text that is computed alone and has `needed` tokens."""
        if needed <= SHORT and self._short is not None:
            self._short.needed()
            if self._short.get() is not None:
                return SHORT
        return self._padded_length.size(needed)

    # --- batches

    def start(self, batch: Batch, per_token: bool, alone: bool) -> None:
        """Begins a forward pass.

        Args:
            batch: The inputs.
            per_token: Whether to return the hidden state of each token, which another network computes.
            alone: Whether no other pass is computed at the same time.

        Raises:
            RuntimeError: The network fails.
        """
        several = not alone and self.slots > 1
        requests = self._hidden_states() if per_token else self._requests(batch, alone, several)
        if several:
            self._passes.start_in_thread(batch, requests)
        else:
            self._passes.start(batch, requests)

    def _requests(self, batch: Batch, alone: bool, several: bool) -> InferRequestPool:
        """Returns the infer requests of the compiled network that computes this batch fastest."""
        assert self._pooled is not None, "pool() comes first"
        if batch.images and self._images is not None:
            return self._images
        better = None
        if alone and self._short is not None and batch.ids.shape == (1, SHORT):
            better = self._short.get()
        elif several and self._streamed is not None:
            better = self._streamed.get()
        return better or self._pooled


def _streams(properties: dict[str, Any]) -> int:
    """Returns NUM_STREAMS, the number of batches computed at once. Raises StartError if it is no number."""
    try:
        return max(1, int(properties["NUM_STREAMS"]))
    except (TypeError, ValueError):
        raise StartError(f"--plugin_config: NUM_STREAMS is {properties['NUM_STREAMS']!r}, not a number") from None
