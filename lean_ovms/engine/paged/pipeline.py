"""The paged engine as a generation.backend.Backend: text models on the CPU."""

from __future__ import annotations

from ..loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
import logging
import sys
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial
from pathlib import Path

import openvino_genai as genai

from ...composition import named
from ...config import EngineConfig
from ...engine_types import Vocabulary
from ...errors import BadRequest, EngineFailure, StartError
from ...repository.gguf import is_gguf
from ...repository.model_dir import LANGUAGE_MODEL
from ...types import SamplingParams
from ...util.resources import allowed_cores
from ..generation.backend import WaitingRequests
from ..generation.grammar_checker import CheckerSettings, ProcessGrammarChecker
from ..generation.pipeline import ASSISTANT_TOKENS, Grammars, ImagePlaceholders, LongTextEncoder
from ..generation.sequence import GenerationRequest
from ..generation.spec_decode_stats import SpecDecodeStats
from ..loading import lora, model_info, pipeline_choice, vocabulary
from ..loading.gguf_tokenizer import GgufTokenizer
from ..loading.graph_tokenizer import TOKENIZER_PROPERTIES
from ..loading.load_errors import as_start_error, check_files, network
from ..loading.settings import PipelineSettings, free_memory_bytes, is_small, network_bytes, resolve, warm_up_prompts
from ..loading.text_encoder import TextEncoder
from .capacity import divide, slots_for
from .drafting.draft_model import DraftModel
from .engine import Engine
from .grammar.matcher import Library, Matcher, Prepare
from .hooks import Parts
from .lora.adapters import Adapter, AdapterTable, fits
from .model import PagedModel
from .network import NotPageable
from .params import Params, read
from .sequence import Sequence
from .vision import families
from .vision.networks import VisionNetworks
from .vision.vision import Vision

log = logging.getLogger(__name__)

CAPABILITIES = ("alternatives", "beam_control", "cache_salt", "cached_tokens", "logit_edits", "progress")
TILE = 16
"""Tokens of which a small network's steps with chunks get a multiple; its steps take as long with 16 tokens as with 1.
For a larger network, padding costs more than it saves."""
CACHE_INTERVAL = 64
"""KV blocks of a prompt between checkpoints of a hybrid model's state, unless --cache_interval_multiplier is given."""
TWO_COPIES_MAX_BYTES = 1 << 30
"""Bytes of weights below which a model that takes adapters is compiled without them too: see model."""
GRAMMAR_PROCESS = (sys.executable, "-m", "lean_ovms.engine.paged.grammar.guidance_process")
XGRAMMAR_PROCESS = (sys.executable, "-m", "lean_ovms.engine.paged.grammar.xgrammar_process")


class Adapters:
    """The weights of the adapters that requests named last."""

    def __init__(self, model: PagedModel, most: int) -> None:
        self._model = model
        self._most = most
        self._read: dict[str, Adapter] = {}

    def get(self, text: str) -> Adapter | None:
        """Returns the adapter of protocol.Submit.adapter; None for "". Raises EngineFailure."""
        if not text:
            return None
        adapter = self._read.pop(text, None)
        if adapter is None:
            try:
                adapter = Adapter(text, *lora.read(text))
            except StartError as error:
                log.error("an adapter cannot be loaded: %s", error)
                raise EngineFailure("The adapter could not be loaded.") from error
            if wrong := fits(adapter, self._model.layers, self._model.fixed):
                log.error("an adapter cannot be loaded: %s", wrong)
                raise EngineFailure(f"The adapter could not be loaded: {wrong}.")
        self._read[text] = adapter
        while len(self._read) > self._most:
            del self._read[next(iter(self._read))]
        return adapter


class PagedPipeline(Engine):
    """A generation.backend.Backend for one model."""

    def __init__(
        self, config: EngineConfig, settings: PipelineSettings | None = None, wake: Callable[[], None] = lambda: None
    ) -> None:
        """Loads and warms up. Raises errors.StartError with a one-line reason, NotPageable where openvino_genai's
        continuous batching may serve. wake: ends the loop's wait.
        """
        settings = settings or resolve(config, free_memory_bytes(), paged=True)
        _refuse(config)
        self._library, prepare = _library(config)
        self._vision: Vision | None = None
        sees = pipeline_choice.has_vision(config.model_dir)
        file = config.model_dir / LANGUAGE_MODEL if sees else network(config.model_dir)
        check_files(config, file.name)
        small = is_small(file)
        with as_start_error(config):
            in_file = GgufTokenizer(file) if is_gguf(file) else None
            self._model = PagedModel(
                file,
                settings.device,
                settings.properties,
                head=settings.head,
                adapted=config.allow_runtime_lora,
                plain=network_bytes(file) < TWO_COPIES_MAX_BYTES,
                twice=small,
                trees=settings.speculative in ("draft", "eagle3"),
                while_compiling=partial(self._load_tokenizer, config, in_file),
            )
            defaults_file = config.model_dir / "generation_config.json"
            defaults = (
                genai.GenerationConfig(str(defaults_file)) if defaults_file.is_file() else genai.GenerationConfig()
            )
            defaults.stop_token_ids |= in_file.ends if in_file else set()
            draft = _draft_network(config, settings) if settings.speculative == "draft" else None
            if settings.head is not None:
                log.info("draft tokens come from the model's head, %s", settings.head)
            capacity = divide(
                settings.cache_bytes,
                blocks=settings.blocks,
                block_bytes=self._model.block_bytes
                + (draft.block_bytes if draft is not None and not config.draft_cache_size else 0),
                state_bytes=self._model.state_bytes,
                states=slots_for(max(config.max_num_seqs, config.best_of_limit), settings.prefix_caching),
            )
            blocks = capacity.blocks
            self._adapters = Adapters(self._model, config.max_loras)
            tile = TILE if small and not self._model.hybrid else 1
            super().__init__(
                self._model,
                blocks=blocks,
                block_size=settings.block_size,
                context=settings.context + ASSISTANT_TOKENS,
                step_tokens=settings.step_tokens,
                max_sequences=config.best_of_limit,
                max_running=config.max_num_seqs,
                states=capacity.states,
                interval=(config.cache_interval_multiplier or CACHE_INTERVAL) * settings.block_size,
                split=settings.split_prompts,
                caching=settings.prefix_caching,
                across=config.priority_across_clients,
                # Two more threads want a core then, this one and the front end's. Where the network's threads have all
                # cores they wait for each other: 8 streams of the demo model took 22 % more CPU time (2026-11).
                overlapping=allowed_cores() >= self._model.threads + 2,
                matcher=self._begin_grammar,
                prepare=prepare,
                tile=tile,
                adapters=AdapterTable(self._model, self._model.groups, config.max_loras),
                proposer=self._draft(draft, config, settings, blocks, prepare) if draft is not None else None,
            )
            # A step of a small network takes less time than another number of tokens would, and a hybrid one writes a
            # state for each draft token, where cached prefixes have theirs.
            self._ngrams = (
                config.ngram_speculation and not settings.speculative and not small and not self._model.hybrid
            )
            self._speculative = bool(settings.speculative) or self._ngrams
            self._warm_up(settings)
        self.info = model_info.describe(config, settings, blocks, self._tokenizer, defaults)
        self._install_features(config, settings)
        if capacity.states:
            self._state_bytes = self._model.state_bytes
            log.info(
                "memory for %d states, %.1f MB each: of %d sequences at most, and of cached prefixes",
                *(capacity.states, self._state_bytes / 1e6, self.max_sequences),
            )
            self.info = replace(self.info, max_sequences=self.max_sequences, state_bytes=self._state_bytes)
        self.long_text_encoder: LongTextEncoder | None = self._encode
        self.scheduler.message_starts = self._encode.dividers
        # Grammars are matched against text, not token text.
        capabilities = [*CAPABILITIES, *(["adapters"] if config.allow_runtime_lora else [])]
        self.info = replace(self.info, sentencepiece=False, capabilities=capabilities)
        self._compiler = self._grammars(config)
        self.grammars = Grammars(self._compiler, self._compiler) if self._compiler is not None else None
        if sees:
            self._vision = self._load_vision(config, settings, wake)
            tokens, video = model_info.image_tokens(self.encode), self._vision.reads_videos
            self.info = replace(self.info, vision=True, video=video, image_tokens=tokens)
        self.image_placeholders: ImagePlaceholders | None = self._vision
        self.image_queue: WaitingRequests | None = self._vision.queue if self._vision is not None else None

    def _load_tokenizer(self, config: EngineConfig, in_file: GgufTokenizer | None) -> None:
        """in_file: the tokenizer of a GGUF file."""
        self._tokenizer = in_file or genai.Tokenizer(str(config.model_dir), **TOKENIZER_PROPERTIES)
        if in_file:
            file, self.vocabulary = network(config.model_dir), in_file.vocabulary
            self._encode = TextEncoder(file, in_file.encode, self.vocabulary.pieces, in_file.library)
        else:
            self.vocabulary = vocabulary.build(config.model_dir, self._tokenizer)
            encode = partial(model_info.encode, self._tokenizer)
            self._encode = TextEncoder(config.model_dir, encode, self.vocabulary.pieces)

    # --- generation.backend.Backend

    def check(self, request: GenerationRequest) -> None:
        if request.sampling.beams > self.max_sequences:
            raise BadRequest(f"more than {self.max_sequences} beams")
        adapter, images, prompt = self._adapters.get(request.adapter), None, request.image_prompt
        if self._vision is not None and prompt is not None:
            images = self._vision.images(request.prompt)
            if request.sampling.prompt_logprobs:
                raise BadRequest("tokens of images have no log probabilities", param="prompt_logprobs")
        speculative = self._speculative and not (images is not None and self.info.speculative == "draft")
        request.native = read(request, speculative=speculative, ngrams=self._ngrams, adapter=adapter, images=images)

    def add(self, request: GenerationRequest) -> None:
        """Implements Backend.add; a request whose images are not encoded is queued when they are."""
        images = request.native.images
        if self._vision is None or images is None or not images.missing():
            request.image_prompt = None
            super().add(request)
            return
        prompt, request.image_prompt = request.image_prompt, None  # its pixels are freed when they are encoded
        assert prompt is not None
        self.requests[request.id] = request
        self._vision.queue.add(request, images, self._vision.in_order(prompt))

    def cancel(self, request_id: int, index: int | None) -> None:
        if self._vision is None or not self._vision.queue.cancel(request_id, index):
            super().cancel(request_id, index)
        elif not self.requests[request_id].unfinished:
            del self.requests[request_id]

    def admit(self, *, compiling: bool = False) -> None:
        for encoded in self._vision.queue.poll() if self._vision is not None else ():
            request = encoded.request
            if encoded.error is not None:
                self._fail(request, encoded.error)
                continue
            super().add(request)
            assert request.group is not None
            self.waiting.charge(request.group.client, encoded.tokens)
        super().admit(compiling=compiling)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._encode(text, add_special_tokens)

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return model_info.decode(self._tokenizer, tokens, skip_special_tokens)

    def _begin_grammar(self, sequence: Sequence) -> Matcher:
        if self._compiler is None:
            raise BadRequest("structured output is not possible with this model")
        return self._compiler.matcher(sequence.request.constraint, sequence.stops)

    # --- loading

    def _grammars(self, config: EngineConfig) -> Library | None:
        """Returns what compiles grammars for this vocabulary; None if its tokens' texts or end tokens are unknown."""
        words, eos = self.vocabulary, self.info.eos_token_ids
        if not words.exact or not eos:
            unknown = "that end a text are unknown" if words.exact else "have texts that are not known for certain"
            text = "%s: schemas, grammars and required tool calls are refused, as its tokens %s"
            log.warning(text, config.served_name, unknown)
            return None
        return self._library(config, words, self._model.vocab_size, eos)

    def _load_vision(self, config: EngineConfig, settings: PipelineSettings, wake: Callable[[], None]) -> Vision:
        """Raises NotPageable."""
        networks = VisionNetworks(config.model_dir, settings.device, settings.properties)
        try:
            family = families.load(config.model_dir, networks)
            cache_bytes = config.image_cache_mb << 20
            shares = config.enable_prefix_caching
            return Vision(family, self.encode, self.decode, cache_bytes=cache_bytes, shares=shares, wake=wake)
        except families.NotReadable as error:
            raise NotPageable(str(error)) from error

    def _draft(
        self, draft: PagedModel, config: EngineConfig, settings: PipelineSettings, blocks: int, prepare: Prepare
    ) -> DraftModel:
        """Makes the draft model. blocks: of the main model's cache. prepare: computes masks."""
        if config.draft_cache_size:
            blocks = max(1, (config.draft_cache_size << 30) // draft.block_bytes)
        return DraftModel(
            draft,
            blocks=blocks,
            block_size=settings.block_size,
            context=settings.draft_context,
            step_tokens=config.draft_max_num_batched_tokens or settings.step_tokens,
            max_sequences=config.draft_max_num_seqs or config.max_num_seqs,
            main=self._model,
            caching=settings.prefix_caching,
            prepare=prepare,
            tile=TILE if is_small(network(Path(config.draft_model_path))) else 1,
        )

    def _install_features(self, config: EngineConfig, settings: PipelineSettings) -> None:
        """Adds what the options ask of features. Raises StartError."""
        parts = Parts(
            config=config,
            settings=settings,
            network=self._model,
            blocks=self.blocks,
            states=self.states,
            hooks=self.hooks,
            out=self.out,
            versions=self.info.versions,
            adapter_name=lora.name,
        )
        for row in config.composition.engine_rows:
            if row.wanted(config.value):
                named(row.package, row.install)(parts)

    def _warm_up(self, settings: PipelineSettings) -> None:
        most = min(settings.context, settings.step_tokens, self.blocks.total * settings.block_size) - 8
        drafted = ASSISTANT_TOKENS if settings.speculative not in ("", "prompt_lookup") else 0
        sampling = SamplingParams(temperature=0.0, ignore_eos=True)
        for prompts in warm_up_prompts(most):
            for number, tokens in enumerate(prompts, 1):
                request = GenerationRequest(number, sampling, {0}, prompt=tokens, max_tokens=8)
                request.native = Params(lookahead=drafted, salt="warm-up")
                self.add(request)
            while self._working:
                self.admit()
                self.compute()
            self._outputs.tell()
            self.out.clear()
        self.blocks.clear_cache()
        self.scheduler.chunk_sizes.forget()
        self.scheduler.draft_budget.forget()
        self.scheduler.steps = 0
        self.drafts = SpecDecodeStats(drafted=0 if self._speculative else None)


def _library(config: EngineConfig) -> tuple[Callable[[EngineConfig, Vocabulary, int, Seq[int]], Library], Prepare]:
    """Returns what makes a grammar library from (config, words, width, ends), and what computes a step's masks.

    Only the library that is used is imported. Raises StartError.
    """
    if config.structured_output_backend != "xgrammar":
        from .grammar import guidance

        return _guidance, guidance.prepare
    from .grammar import xgrammar_core, xgrammar_matcher

    try:
        xgrammar_core.load()
    except xgrammar_core.NotUsable as error:
        raise StartError(
            f"--structured_output_backend xgrammar: {error}; {pipeline_choice.XGRAMMAR_INSTALL}"
        ) from error
    return _xgrammar, xgrammar_matcher.prepare


def _guidance(config: EngineConfig, words: Vocabulary, width: int, eos: Seq[int]) -> Library:
    from .grammar.guidance import Guidance

    reader = ProcessGrammarChecker(_checker_settings(config, width), GRAMMAR_PROCESS)
    return Guidance(words.pieces, width, eos, reader, special=words.special)


def _xgrammar(config: EngineConfig, words: Vocabulary, width: int, eos: Seq[int]) -> Library:
    from .grammar.xgrammar_matcher import XGrammar

    settings = replace(_checker_settings(config, width), eos=sorted(eos), probe_s=1.0)

    def checker(pieces: Seq[bytes]) -> ProcessGrammarChecker:
        return ProcessGrammarChecker(replace(settings, pieces=pieces), XGRAMMAR_PROCESS)

    return XGrammar(words.pieces, width, eos, checker, special=words.special)


def _checker_settings(config: EngineConfig, width: int) -> CheckerSettings:
    return CheckerSettings(
        model_dir=str(config.model_dir),
        width=width,
        timeout_s=config.grammar_timeout_s,
        memory_bytes=config.grammar_memory_mb << 20,
        probe_s=0.0,
    )


def _draft_network(config: EngineConfig, settings: PipelineSettings) -> PagedModel:
    """Raises NotPageable."""
    file = network(Path(config.draft_model_path))
    try:
        draft = PagedModel(file, settings.device, settings.properties, twice=is_small(file))
    except NotPageable as error:
        raise NotPageable(f"the draft model: {error}") from error
    if draft.hybrid:
        raise NotPageable("the draft model keeps a state that cannot go back to before a wrong draft token")
    return draft


def _refuse(config: EngineConfig) -> None:
    """Raises StartError for options that this engine does not support and GenAI's does."""
    need = pipeline_choice.only_genai(config)
    if need == pipeline_choice.XGRAMMAR_MISSING:
        raise StartError(f"--pipeline_type PAGED does not support {need}; {pipeline_choice.XGRAMMAR_INSTALL}")
    if need:
        other = "VLM_CB" if pipeline_choice.has_vision(config.model_dir) else "LM_CB"
        raise StartError(f"--pipeline_type PAGED does not support {need}; --pipeline_type {other} does")
