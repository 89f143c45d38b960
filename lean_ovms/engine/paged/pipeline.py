"""The paged engine as a generation.backend.Backend, with the model's tokenizer and the images of its prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import BadRequest
from ...types import SamplingParams
from ...types.engine import ModelInfo, Vocabulary
from ..generation.backend import (
    ASSISTANT_TOKENS,
    ImagePlaceholders,
    LongTextEncoder,
    SpecDecodeStats,
    WaitingRequests,
)
from ..generation.sequence import GenerationRequest
from ..loading.text_encoder import TextEncoder
from .engine import Engine
from .model import PagedModel
from .params import Prepared, engine_params
from .parts import EngineParts, EngineSizes, InputEmbeddings

WARM_UP = range(1, 9)
"""The ids of the prompt that is computed while loading; every vocabulary has them."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelTokenizer:
    """A loaded tokenizer, and what was derived from it."""

    native: Any
    """The tokenizer of openvino_genai, or an object with its methods."""
    vocabulary: Vocabulary
    """The texts of all tokens."""
    encode: TextEncoder
    """Encodes texts."""
    ends: frozenset[int]
    """The stop tokens named in the tokenizer's file."""

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Returns the text of token ids."""
        return str(self.native.decode(tokens, skip_special_tokens=skip_special_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineParts(EngineParts):
    """The parts of a pipeline: those of its engine, and those that prepare requests for it."""

    tokenizer: ModelTokenizer
    """The model's tokenizer."""
    images: InputEmbeddings | None
    """Creates embeddings of images; None for a text model."""
    drafting: str
    """The kind of drafting: draft, eagle3, mtp or prompt_lookup; "" for none."""
    ngrams: bool
    """Whether requests get draft tokens by prompt lookup without asking for it."""


class PagedPipeline(Engine):
    """A generation.backend.Backend for one model, created by `assemble.load`."""

    info: ModelInfo

    def __init__(self, network: PagedModel, sizes: EngineSizes, parts: PipelineParts) -> None:
        """Creates the pipeline and its caches. The caller must set `info`."""
        super().__init__(network, sizes, parts)
        self._model = network
        self._state_bytes = network.state_bytes
        self._drafting = parts.drafting
        self._ngrams = parts.ngrams
        self._speculative = bool(parts.drafting) or parts.ngrams
        self._tokenizer = parts.tokenizer
        self._adapters = parts.adapters
        self._images = parts.images
        self.vocabulary = parts.tokenizer.vocabulary
        self.long_text_encoder: LongTextEncoder | None = parts.tokenizer.encode
        self.scheduler.checkpoints.message_starts = parts.tokenizer.encode.dividers
        self.image_placeholders: ImagePlaceholders | None = self._images
        self.image_queue: WaitingRequests | None = self._images.queue if self._images is not None else None

    # --- generation.backend.Backend

    def check(self, request: GenerationRequest) -> None:
        super().check(request)
        adapter, images, prompt = self._adapters.get(request.adapter), None, request.image_prompt
        if self._images is not None and prompt is not None:
            images = self._images.of_prompt(request.prompt)
            if request.sampling.prompt_logprobs:
                raise BadRequest("prompt_logprobs is not supported for prompts with images", param="prompt_logprobs")
        speculative = self._speculative and not (images is not None and self._drafting == "draft")
        params = engine_params(request, speculative=speculative, ngrams=self._ngrams)
        request.native = Prepared(params, adapter, images)

    def add(self, request: GenerationRequest) -> None:
        """Queues a request that `check` has accepted. If it has images, they are encoded first."""
        images = request.native.images
        if self._images is None or images is None or not images.missing():
            request.image_prompt = None
            super().add(request)
            return
        self.requests[request.id] = request
        self._images.encode(request)
        request.image_prompt = None  # its pixels are freed when they are encoded

    def cancel(self, request_id: int, index: int | None) -> None:
        if self._images is None or not self._images.queue.cancel(request_id, index):
            super().cancel(request_id, index)
        elif not self.requests[request_id].unfinished:
            del self.requests[request_id]

    def admit(self, *, compiling: bool = False) -> None:
        for encoded in self._images.queue.poll() if self._images is not None else ():
            request = encoded.request
            if encoded.error is not None:
                self.scheduler.fail(request, encoded.error)
                continue
            super().add(request)
            assert request.group is not None
            self.waiting.charge(request.group.client, encoded.tokens)
        super().admit(compiling=compiling)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens)

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens)

    # --- loading

    def warm_up(self) -> None:
        """Computes a short prompt, by which OpenVINO packs the weights, and removes it from the prefix cache.

        Prompts of other lengths and several at once, computed here too, took 0.4 s of CPU time of SmolLM2-135M and 1.2
        of Qwen2.5-Coder 1.5B, and saved a first request at most 5 % of its prompt's time.
        """
        drafted = ASSISTANT_TOKENS if self._drafting not in ("", "prompt_lookup") else 0
        # A step behind a prompt, and one like all others; 5 more took 0.2 s of CPU time and made no request faster.
        answer = 8 if drafted else 3
        sampling = SamplingParams(temperature=0.0, num_assistant_tokens=drafted, cache_salt="warm-up")
        request = GenerationRequest(1, sampling, {0}, prompt=[*WARM_UP], max_tokens=answer)
        request.native = Prepared(sampling)
        self.add(request)
        while self._working:
            self.admit()
            self.runner.compute()
        self.outputs.emit()
        self.out.clear()
        self.blocks.clear_cache()
        self.scheduler.chunk_sizes.forget()
        if self.scheduler.speculation.source is not None:
            self.scheduler.speculation.source.forget()
        self.scheduler.steps = 0
        self.runner.drafts = SpecDecodeStats(drafted=0 if self._speculative else None)
