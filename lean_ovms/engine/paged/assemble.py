"""Builds a paged engine by the options and a model's files. Only this module knows all its parts."""

from __future__ import annotations

from ..loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ...config import EngineConfig
from ...errors import StartError
from ...manifest import (
    ADAPTER_INPUTS,
    CHANGED_WEIGHTS,
    DRAFT_PLAN,
    HYBRID_NETWORKS,
    INPUT_EMBEDDINGS,
    NETWORK_COMPILER,
    SAMPLER_CHAINS,
    SOFT_CAPS,
    TEXT_DRAFTS,
    TEXT_SEARCH,
    named,
)
from ...repository import model_file
from ...repository.model_config import LANGUAGE_MODEL
from ...util.resources import allowed_cores, trim
from ..generation.backend import ASSISTANT_TOKENS
from ..loading import pipeline_choice, vocabulary
from ..loading.pipeline_choice import as_start_error, check_files, network
from ..loading.settings import (
    TOKENIZER_PROPERTIES,
    PipelineSettings,
    describe,
    free_memory_bytes,
    is_small,
    network_bytes,
    resolve,
)
from ..loading.text_encoder import JsonTokenizer, TextEncoder, exported_ids
from .engine import ModelTokenizer, PagedPipeline, PipelineParts, divide, slots_for
from .ir_weights import open_weights
from .model import PagedModel
from .network import AdapterInputs, AdapterProvider, EngineFile, NetworkCompiler, VisionFile, compile_new, file_of
from .parts import CAPABILITIES, TILE, DraftPlan, EngineSizes, NoDrafts, NoGrammars, PagedGrammars, Parts

log = logging.getLogger(__name__)

CACHE_INTERVAL = 64
"""KV blocks of a prompt between checkpoints of a hybrid model's state, unless --cache_interval_multiplier is given."""
SLOW_S = 1.5
"""The seconds for reading and compiling a network from which the log says that it can be kept."""
TWO_COPIES_MAX_BYTES = 1 << 30
"""Bytes of weights up to which a model with adapters is also compiled without them, for steps that use none."""


def load(
    config: EngineConfig, settings: PipelineSettings | None = None, wake: Callable[[], None] = lambda: None
) -> PagedPipeline:
    """Loads a model, and warms it up.

    Args:
        config: The options.
        settings: The settings resolved from the options; None to resolve them here.
        wake: Wakes up the engine's loop.

    Raises:
        NotPageable: This engine cannot serve the model; openvino_genai's continuous batching may.
        StartError: The model cannot be loaded; the message is the reason, in one line.
    """
    settings = settings or resolve(config, free_memory_bytes(), paged=True)
    _refuse(config)
    source = pipeline_choice.grammar_source(config)
    new_grammars = None if source is None else source.load()
    files = _model_files(config)
    new_plan, new_inputs = map(config.part, (DRAFT_PLAN, ADAPTER_INPUTS))
    drafts: DraftPlan = new_plan(settings, small=files.small) if new_plan else NoDrafts()
    inputs: AdapterInputs | None = new_inputs(config) if new_inputs else None
    with as_start_error(config):
        model, tokenizer = _compile(config, settings, files, drafts, inputs)
        draft_bytes = drafts.load(model, files.network)
        sizes = _sizes(config, settings, model, draft_bytes=draft_bytes, small=files.small)
        info = describe(config, settings, sizes.blocks, tokenizer.native, _end_tokens(config.model_dir, tokenizer))
        grammars: PagedGrammars = NoGrammars()
        if new_grammars is not None:
            grammars = new_grammars(tokenizer.vocabulary, model.vocab_size, info.eos_token_ids)
        # A hybrid network writes a state for each draft token, where cached prefixes have theirs.
        ngrams = drafts.ngrams and not model.hybrid
        new_source = drafts.source_factory(model, sizes, grammars.prepare)
        new_images = config.part(INPUT_EMBEDDINGS) if files.reads_images else None
        parts = PipelineParts(
            grammars=grammars,
            new_draft_source=new_source or (config.part(TEXT_DRAFTS) if drafts.kind or ngrams else None),
            # Few requests ask for these: they are imported with the first.
            new_search=(lambda first: config.part(TEXT_SEARCH)(first)) if config.wants(TEXT_SEARCH) else None,
            new_sampler_chain=lambda sequence: config.part(SAMPLER_CHAINS)(sequence, tokenizer),
            adapters=inputs.provider(model) if inputs is not None else AdapterProvider(),
            tokenizer=tokenizer,
            images=new_images(config, settings, tokenizer, wake, files.vision) if new_images is not None else None,
            drafting=drafts.kind,
            ngrams=ngrams,
        )
        pipeline = PagedPipeline(model, sizes, parts)
        capabilities = [*CAPABILITIES, *["adapters"] * (inputs is not None)]
        pipeline.info = replace(info, capabilities=capabilities, of_task=dict(parts.adapters.report))
        if (images := parts.images) is not None:
            video, tokens = images.reads_videos, images.tokens
            pipeline.info = replace(pipeline.info, vision=True, video=video, image_tokens=tokens)
        if sizes.states:
            most, size = pipeline.max_sequences, model.state_bytes
            text = "memory for %d states of %.1f MB each, for at most %d sequences and for cached prefixes"
            log.info(text, sizes.states, size / 1e6, most)
            pipeline.info = replace(pipeline.info, max_sequences=most, state_bytes=size)
        trim()  # frees what compiling took before OpenVINO packs the weights in the first step
        pipeline.warm_up()
    _install_features(pipeline, model, parts.adapters, config, settings)
    return pipeline


class _ModelFiles(NamedTuple):
    """The files of a model that the engine reads."""

    network: Path
    """The file of the language model's network."""
    single: EngineFile | None
    """The model, if it consists of one file."""
    vision: VisionFile | None
    """The file with the vision networks of a model in one file; None if there is none, or it is not read."""
    reads_images: bool
    """Whether prompts may have images."""
    small: bool
    """Whether the network's steps are short."""


def _model_files(config: EngineConfig) -> _ModelFiles:
    """Finds the files of a model. Raises StartError if one is missing."""
    in_directory = pipeline_choice.has_vision(config.model_dir)
    file = config.model_dir / LANGUAGE_MODEL if in_directory else network(config.model_dir)
    check_files(config, file.name)
    single, readable = file_of(file), config.wants(INPUT_EMBEDDINGS)
    vision = single.vision_file(config) if single is not None and readable else None
    if single is not None and not readable:
        single.without_images(config, "this server does not read images")
    reads_images = (in_directory and readable) or vision is not None
    return _ModelFiles(file, single, vision, reads_images, is_small(file))


def _compile(
    config: EngineConfig,
    settings: PipelineSettings,
    files: _ModelFiles,
    drafts: DraftPlan,
    inputs: AdapterInputs | None,
) -> tuple[PagedModel, ModelTokenizer]:
    """Compiles a network, and loads its tokenizer meanwhile.

    Args:
        config: The options.
        settings: The settings resolved from the options.
        files: The files of the model.
        drafts: The source of draft tokens, which may change the network.
        inputs: Adds inputs for adapters to the network; None for none.

    Raises:
        NotPageable: This engine cannot compute the network.
        RuntimeError: OpenVINO cannot compile the network.
        StartError: The tokenizer cannot be loaded.
    """
    images, found = files.vision is not None, list[ModelTokenizer]()
    exact, adapted = config.batch_invariant, inputs is not None
    weights = open_weights(files.network, drafts.edits, trees=drafts.trees, adapted=adapted, exact=exact, images=images)
    change_weights, began = config.part(CHANGED_WEIGHTS), time.monotonic()
    model = PagedModel(
        change_weights(config, weights) if change_weights else weights,
        settings.device,
        settings.properties,
        adapters=inputs,
        keep_base_model=network_bytes(files.network) < TWO_COPIES_MAX_BYTES,
        separate_prefill_model=files.small,
        hybrid_edit=lambda: None if exact else config.part(HYBRID_NETWORKS),
        soft_caps=lambda: config.part(SOFT_CAPS),
        compiler=_compiler(config, files.network, drafts, images=images),
        while_compiling=lambda: found.append(_load_tokenizer(config.model_dir, files.network, files.single)),
    )
    could_keep = settings.device == "CPU" and not (config.cache_dir or files.small or drafts.edits or adapted)
    if could_keep and NETWORK_COMPILER in config.composition.parts and (took_s := time.monotonic() - began) >= SLOW_S:
        log.info("the network took %.1f s to compile; with --cache_dir DIR, later starts may be faster", took_s)
    return model, found[0]


def _sizes(
    config: EngineConfig, settings: PipelineSettings, model: PagedModel, *, draft_bytes: int, small: bool
) -> EngineSizes:
    """Returns the sizes of an engine whose caches fit into the memory that the settings have for them.

    Args:
        config: The options.
        settings: The settings resolved from the options.
        model: The compiled network.
        draft_bytes: The bytes that a draft network adds to each KV block.
        small: Whether the network's steps are short.
    """
    capacity = divide(
        settings.cache_bytes,
        blocks=settings.blocks,
        block_bytes=draft_bytes + model.block_bytes,
        state_bytes=model.state_bytes,
        states=slots_for(max(config.max_num_seqs, config.best_of_limit), settings.prefix_caching),
    )
    return EngineSizes(
        blocks=capacity.blocks,
        block_size=settings.block_size,
        context=settings.context + ASSISTANT_TOKENS,
        step_tokens=settings.step_tokens,
        most_step_tokens=settings.most_step_tokens,
        threads=model.threads,
        max_sequences=config.best_of_limit,
        max_running=config.max_num_seqs,
        states=capacity.states,
        interval=(config.cache_interval_multiplier or CACHE_INTERVAL) * settings.block_size,
        split=settings.split_prompts,
        caching=settings.prefix_caching,
        priority_across_clients=config.priority_across_clients,
        # Two more threads want a core then, this one and the front end's. Where the network's threads have all cores
        # they wait for each other: 8 streams of the demo model took 22 % more CPU time (2026-11).
        overlapping=allowed_cores() >= model.threads + 2,
        pad_to=TILE if small and not model.hybrid else 1,
    )


def _load_tokenizer(model_dir: Path, file: Path, single: EngineFile | None) -> ModelTokenizer:
    """Loads the tokenizer of a model.

    Args:
        model_dir: The directory of the model, or its file.
        file: The file of its network.
        single: The model, if it consists of one file.
    """
    if single is not None:
        native = single.tokenizer()
        encode = TextEncoder(file, native.encode, native.vocabulary.pieces, native.library)
        return ModelTokenizer(native, native.vocabulary, encode, frozenset(native.ends))
    import openvino_genai as genai  # late: it takes 12 MB, which single-file models do not need

    exported = genai.Tokenizer(str(model_dir), **TOKENIZER_PROPERTIES)
    library = JsonTokenizer.read(model_dir)
    known = vocabulary.build(model_dir, exported, library)
    encode = TextEncoder(model_dir, partial(exported_ids, exported), known.pieces, library)
    return ModelTokenizer(exported, known, encode, frozenset())


def _compiler(config: EngineConfig, file: Path, drafts: DraftPlan, *, images: bool) -> NetworkCompiler:
    """Returns the compiler for the network in a file, which caches it on disk unless drafting changes it."""
    new = None if drafts.edits else config.part(NETWORK_COMPILER)
    if new is None:
        return compile_new
    changed = config.composition.parts.get(CHANGED_WEIGHTS)
    options = ("batch_invariant", *(changed.options if changed is not None else ()))
    parts = sorted(config.composition.parts)  # features that are left out change no network
    known = {"trees": drafts.trees, "images": images, "parts": parts, **{name: config.value(name) for name in options}}
    found: NetworkCompiler = new(config, file, known | model_file.changes(config, file))
    return found


def _end_tokens(model_dir: Path, tokenizer: ModelTokenizer) -> Iterable[int]:
    """Returns the tokens that end an answer by the model's files; negative ones stand for none."""
    file = model_dir / "generation_config.json"
    if not file.is_file():
        return tokenizer.ends
    import openvino_genai as genai  # late, as above

    defaults = genai.GenerationConfig(str(file))
    return {*defaults.stop_token_ids, defaults.eos_token_id, *tokenizer.ends}


def _install_features(
    pipeline: PagedPipeline,
    network: PagedModel,
    adapters: AdapterProvider,
    config: EngineConfig,
    settings: PipelineSettings,
) -> None:
    """Adds the features that the options enable to a pipeline. Raises StartError."""
    parts = Parts(
        config=config,
        settings=settings,
        network=network,
        blocks=pipeline.blocks,
        states=pipeline.states,
        hooks=pipeline.hooks,
        out=pipeline.out,
        versions=pipeline.info.versions,
        adapter_name=adapters.name,
    )
    for row in config.engine_rows:
        named(row.package, row.install)(parts)


def _refuse(config: EngineConfig) -> None:
    """Raises StartError if an option is set that this engine does not support."""
    need = pipeline_choice.unsupported(config)
    if not need:
        return
    source, hint = pipeline_choice.grammar_source(config), ""
    if source is not None and source.install and need == source.missing:
        hint = f"; {source.install}"
    elif config.composition.backend is not None:
        hint = f"; --pipeline_type {'VLM_CB' if pipeline_choice.has_vision(config.model_dir) else 'LM_CB'} does"
    raise StartError(f"--pipeline_type PAGED does not support {need}{hint}")
