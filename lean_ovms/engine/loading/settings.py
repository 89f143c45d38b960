"""Resolves options and config.json to the device and the settings with which a pipeline is built.

By default, GenAI grows the KV cache by copying all of it, until the machine's memory is used up. So the number of
blocks is always fixed here. Memory for the blocks is committed only when they are used.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openvino as ov

from ...config import EngineConfig
from ...config.options import PROPERTIES, read_object
from ...errors import StartError
from ...repository import model_config
from ...repository.model_config import MTP_HEAD, weights_bytes
from ...types import Json
from ...types.engine import ModelInfo
from ...util.resources import free_memory_bytes as free_memory_bytes
from ...util.resources import thread_limit
from .pipeline_choice import CACHE_OPTIONS, Drafts, drafts_of, network
from .quiet_imports import PREPARED

# The first call of to_dtype, which tensors and constants make for their data, fills a table without the interpreter's
# lock (2026.4). A second thread that made its first call then would wait for the table and keep the lock, for ever.
# Networks are read in one thread and tokenizers in another, so this call is made before there are threads.
ov.Type.f32.to_dtype()

log = logging.getLogger(__name__)

TOKENIZER_PROPERTIES = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False}
"""OpenVINO properties of tokenizers. Tokenizing has no parallel work: with more threads it takes twice the CPU time,
and waits if another process uses one of two cores (a prompt of 100 tokens: median 4.3 ms against 0.45 with one thread,
and 0.27 against 0.25 on a quiet machine; 2026-11)."""
CPU_BLOCK = 32
OTHER_BLOCK = 16
"""Tokens per KV block on a device that is not known to be a CPU. The smaller size is assumed for unknown devices: it
overstates the use of the cache, while understating it would make GenAI end all running requests."""


# --- devices


def chosen_device(option: str, available: Sequence[str], free_memory: Callable[[str], int]) -> str:
    """Returns the device to use: for "auto" the one that OVMS would choose, any other name unchanged.

    OVMS chooses the discrete GPU with the most free memory, else any GPU, else the CPU.

    Args:
        option: The name of a device, or "auto".
        available: The names of OpenVINO's devices.
        free_memory: Returns the free bytes of a GPU's memory, 0 for one that shares the machine's memory.
    """
    if option != "auto":
        return option
    gpus = [name for name in available if name.startswith("GPU")]
    return max(gpus, key=free_memory) if gpus else "CPU"


def devices_in(device: str, available: Sequence[str]) -> list[str]:
    """Returns the devices of a name: those listed in AUTO:…, HETERO:…, MULTI:… or BATCH:…, or all for AUTO alone."""
    mode, colon, names = device.partition(":")
    if colon:
        return [name.partition("(")[0].strip() for name in names.split(",") if name.strip(" ^")]
    return list(available) if mode in ("AUTO", "HETERO", "MULTI") else [device]


def missing_device(devices: Sequence[str], available: Sequence[str]) -> str:
    """Returns the first of these devices that is not available, "" if all are. GPU is the same as GPU.0."""
    known = set(available) | {name.split(".")[0] for name in available} | {"AUTO", "HETERO", "MULTI", ""}
    return next((name for device in devices for name in devices_in(device, available) if name not in known), "")


def tokens_per_block(devices: Sequence[str]) -> int:
    """Returns the number of tokens in a KV block on these devices."""
    return CPU_BLOCK if devices and all(name == "CPU" for name in devices) else OTHER_BLOCK


def on_device(config: EngineConfig) -> tuple[EngineConfig, Sequence[str]]:
    """Returns the config with an existing device, and the names of all devices. Raises StartError."""
    draft_device = drafts_of(config).device
    if config.target_device == "CPU" and draft_device in ("", "CPU"):
        return config, ("CPU",)  # listing the others loads their plugins
    core = ov.Core()
    available = core.available_devices
    device = chosen_device(config.target_device, available, lambda name: gpu_memory(core, name))
    unknown = missing_device([device, draft_device], available)
    if unknown:
        raise StartError(f"--target_device {unknown}: this machine has no such device, only {', '.join(available)}")
    return config.replace(target_device=device), available


def device_of(config: EngineConfig) -> str:
    """Returns the name of the device that a config selects. Raises StartError if it does not exist."""
    return on_device(config)[0].target_device


def gpu_memory(core: ov.Core, name: str) -> int:
    """Returns the bytes of a GPU's own memory, 0 for one that shares the machine's memory."""
    try:
        if "discrete" not in str(core.get_property(name, "DEVICE_TYPE")).lower():
            return 0
        return int(core.get_property(name, "GPU_DEVICE_TOTAL_MEM_SIZE"))
    except (RuntimeError, TypeError, ValueError):
        return 0


def cpu_plugin() -> str:
    """Returns the path of openvino's CPU plugin, which also has the operations of compiled networks, or its folder."""
    folder = Path(ov.__file__).parent / "libs"
    return str(next(folder.glob("*openvino_*_cpu_plugin.*"), folder))


# --- settings

BOTH, KEYS, VALUES = "KV_CACHE_PRECISION", "KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION"
HINT = "INFERENCE_PRECISION_HINT"
INVARIANT = {HINT: "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
"""OpenVINO properties with which other tokens in a batch change a token's values only in the seventh digit. In bf16 it
would be the third, and OpenVINO would quantize the activations of some batches to 8 bits, but not those of others."""
UNKNOWN_CONTEXT = 4096
"""The context length of a model whose config.json has none; --max_model_len overrides it."""
SPARE_BLOCKS = 16
STEP_TOKENS, MOST_STEP_TOKENS = 256, 1024
"""The most tokens of a step if no option sets it: OVMS's default, and the size to which it grows while steps are quick.
A larger step did not raise the throughput of a model with 135M parameters."""
NO_LIMIT = 1 << 31
SHAPES = "CPU_RUNTIME_CACHE_CAPACITY"
"""OpenVINO's property for the number of operations, prepared for a shape, that a network caches."""
SMALL_NETWORK = 4 << 20
"""Bytes of weights below which a network is computed by one thread, since several would wait longer than they save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """The settings of a pipeline, derived from the options and the model's files."""

    device: str
    """The device's name in OpenVINO."""
    properties: dict[str, Any]
    """The OpenVINO properties of the compiled networks."""
    speculative: str
    """The kind of speculative decoding: draft, eagle3, mtp or prompt_lookup; empty for none."""
    context: int
    """The most tokens of a prompt and its answer together."""
    vocab_size: int
    """The size of the model's vocabulary."""
    block_size: int
    """The number of tokens in a block of the KV cache."""
    blocks: int
    """The number of blocks in the KV cache; 0 if `cache_gb` sets its size."""
    cache_bytes: int
    """The size in bytes of the KV cache, and of the states of hybrid models."""
    cache_gb: int
    """The size of the cache in GiB, for pipelines that do not take a number of blocks."""
    step_tokens: int
    """The most tokens of a step, GenAI's max_num_batched_tokens."""
    most_step_tokens: int
    """The number of tokens to which a quick step of the paged engine may grow."""
    split_prompts: bool
    """Whether a prompt may be computed over several steps."""
    prefix_caching: bool
    """Whether the prefix cache is used, so that prompts share cached blocks."""
    drafts: Drafts = field(default_factory=Drafts)
    """The options' settings of speculative decoding."""
    draft_context: int = 0
    """The context length of the draft model in tokens."""
    head: Path | None = None
    """The file of the draft head that the paged engine uses; None for none."""
    max_prompt_tokens: int = NO_LIMIT
    """The most prompt tokens that the device can compute."""


def resolve(
    config: EngineConfig, free_bytes: int, available: Sequence[str] = ("CPU",), *, paged: bool = False
) -> PipelineSettings:
    """Resolves the settings of a pipeline with continuous batching.

    Args:
        config: The engine's configuration.
        free_bytes: The free memory in bytes, of which the KV cache gets a share.
        available: The names of OpenVINO's devices.
        paged: Whether the settings are for the paged engine. It determines the size of a block itself, so `blocks` is
            only an upper limit, and so is `cache_bytes`.

    Raises:
        StartError: Options are incompatible with each other, the model or the device; the message names them.
    """
    properties, drafts = _properties(config), drafts_of(config)
    lookup = bool(properties.pop("prompt_lookup", False)) or drafts.lookup
    speculative = _speculative(config, drafts, lookup=lookup, paged=paged)
    model = model_config.read(config.model_dir)
    draft = model_config.read(drafts.model) if drafts.model else None
    context = _context(config, model)
    block_size = tokens_per_block(devices_in(config.target_device, available))
    blocks = 0
    if not config.cache_size:
        most = (context // block_size + 1) * config.max_num_seqs + SPARE_BLOCKS  # what requests could ever fill
        per_block = block_size * kv_bytes_per_token(config, model, properties)
        blocks = most if paged else _blocks(config, per_block, free_bytes, most)
    cache_gb = config.cache_size or max(1, _share(config, free_bytes) >> 30)
    # With a draft model, a prompt that is not computed whole in one step (split, or partly cached) makes GenAI
    # generate wrong tokens as soon as it is not alone: doubled first tokens, or an end at once.
    whole = speculative == "draft" and not paged
    split = config.dynamic_split_fuse and not whole
    step_tokens = config.max_num_batched_tokens or STEP_TOKENS
    return PipelineSettings(
        device=config.target_device,
        properties=properties,
        speculative=speculative,
        context=context,
        vocab_size=model_config.vocab_size(model),
        block_size=block_size,
        blocks=blocks,
        cache_bytes=_share(config, free_bytes) if blocks else cache_gb << 30,
        cache_gb=cache_gb,
        step_tokens=step_tokens if split else max(step_tokens, context),
        most_step_tokens=config.max_num_batched_tokens or MOST_STEP_TOKENS,
        split_prompts=split,
        prefix_caching=config.enable_prefix_caching and not whole,
        drafts=drafts,
        draft_context=min(context, model_config.context_length(draft) or context) if draft is not None else 0,
        head=_head(config, drafts, speculative),
    )


def _speculative(config: EngineConfig, drafts: Drafts, *, lookup: bool, paged: bool) -> str:
    """Returns the kind of speculative decoding. Raises StartError for options that exclude each other.

    Args:
        config: The engine's configuration.
        drafts: The options of draft models and heads.
        lookup: Whether requests can ask for prompt lookup.
        paged: Whether the settings are for the paged engine.
    """
    if lookup and drafts.model:
        raise StartError("--draft_model_path and prompt lookup cannot be used together")
    found = _draft_kind(drafts, paged) or ("prompt_lookup" if lookup else _mtp(config, drafts, paged))
    if drafts.mtp == "true" and found != "mtp":
        raise StartError("--mtp true cannot be used together with --draft_model_path or prompt lookup")
    return found


def _context(config: EngineConfig, model: Json) -> int:
    """Returns the most tokens of a prompt and its answer together, given the model's config.json."""
    if known := [length for length in (model_config.context_length(model), config.max_model_len) if length]:
        return min(known)
    said = "the context length of %s is unknown (config.json); %d tokens are assumed, which --max_model_len can change"
    log.warning(said, config.model_dir, UNKNOWN_CONTEXT)
    return UNKNOWN_CONTEXT


def _head(config: EngineConfig, drafts: Drafts, speculative: str) -> Path | None:
    if speculative == "eagle3" and drafts.model:
        return network(drafts.model)
    return config.model_dir / MTP_HEAD if speculative == "mtp" else None


def _draft_kind(drafts: Drafts, paged: bool) -> str:
    """Returns the kind of draft model: "eagle3" if the paged engine runs it as a head, else "draft"; "" for none."""
    if not drafts.model:
        return ""
    head = drafts.eagle3 or model_config.is_head(drafts.model, "eagle3")
    return "eagle3" if paged and head else "draft"


def _mtp(config: EngineConfig, drafts: Drafts, paged: bool) -> str:
    """Returns "mtp" if the multi-token prediction head in the model's directory is used, or "". Raises StartError."""
    file = config.model_dir / MTP_HEAD
    if drafts.mtp == "true" and not (paged and file.is_file()):
        raise StartError(
            f"--mtp true: {f'there is no {file}' if paged else 'this needs the PAGED pipeline on the CPU'}"
        )
    return "mtp" if paged and drafts.mtp != "false" and file.is_file() else ""


def _share(config: EngineConfig, free_bytes: int) -> int:
    return free_bytes * config.cache_memory_percent // 100


def _blocks(config: EngineConfig, per_block: int, free_bytes: int, most: int) -> int:
    """Returns the number of blocks that the KV cache's share of the memory can hold, at most `most`; 0 if unknown."""
    return max(SPARE_BLOCKS, min(_share(config, free_bytes) // per_block, most)) if per_block else 0


def kv_bytes_per_token(config: EngineConfig, model: Json, properties: dict[str, Any]) -> int:
    """Returns the size of a token in the KV cache in bytes, including a draft model that shares the cache.

    Args:
        config: The options.
        model: The fields of the model's config.json.
        properties: OpenVINO's properties of the network.

    Returns:
        The size in bytes; 0 if a config.json lacks the information.
    """
    size = model_config.kv_bytes_per_token(model, *kv_precisions(config, properties))
    if (drafts := drafts_of(config)).model and not drafts.cache_gb:
        size += draft_bytes_per_token(config, drafts.model, properties)
    return size


def draft_bytes_per_token(config: EngineConfig, draft: Path, properties: dict[str, Any]) -> int:
    """Returns the size in bytes of a token in the KV cache of a draft model; 0 if it is unknown."""
    return model_config.kv_bytes_per_token(model_config.read(draft), *kv_precisions(config, properties))


def kv_precisions(config: EngineConfig, properties: dict[str, Any]) -> tuple[str, str]:
    """Returns the element types of the keys and of the values in the KV cache."""
    both = properties.get(BOTH, DEFAULT if config.target_device == "CPU" else "f16")
    keys, values = (str(properties.get(name, both)).lower() for name in (KEYS, VALUES))
    return keys, values


def device_properties(config: EngineConfig) -> dict[str, Any]:
    """Returns the OpenVINO properties, set by the options, for networks compiled here. Raises StartError."""
    plugin = read_object("plugin_config", config.plugin_config)
    if "NUM_STREAMS" in plugin and config.num_streams > 1:
        raise StartError("--num_streams and NUM_STREAMS of --plugin_config cannot be used together")
    return {"NUM_STREAMS": config.streams, **base_properties(config), **plugin}


def kept_shapes(config: EngineConfig) -> dict[str, Any]:
    """Returns the property of networks whose inputs have many lengths: how many operations they keep.

    Whisper's decoder, whose steps all differ, took 1.05 of the CPU time with it, and no less memory (2026-11).
    """
    return {SHAPES: PREPARED} if config.target_device == "CPU" else {}


def base_properties(config: EngineConfig) -> dict[str, Any]:
    """Returns the OpenVINO properties of every network, except those of --plugin_config. Raises StartError."""
    properties: dict[str, Any] = {"CACHE_DIR": config.cache_dir} if config.cache_dir else {}
    if config.batch_invariant:
        properties |= _invariant(config)
    if config.target_device == "CPU":
        # Pinned threads lose when a second busy process shares the cores, and the front end is one.
        properties |= {"ENABLE_CPU_PINNING": False, **thread_limit()}
    return properties


def _invariant(config: EngineConfig) -> dict[str, str]:
    """Returns the properties that --batch_invariant sets. Raises StartError if another option is incompatible."""
    plugin = read_object("plugin_config", config.plugin_config)
    for name, value in INVARIANT.items():
        if str(plugin.get(name, value)).lower() != value:
            raise StartError(f"--batch_invariant and --plugin_config set {name} to different values")
    if short := [f"--{name} bf16" for name in CACHE_OPTIONS if str(config.value(name)).lower() == "bf16"]:
        raise StartError(f"--batch_invariant computes in f32, which does not support {', '.join(short)}")
    return INVARIANT


def _properties(config: EngineConfig) -> dict[str, Any]:
    properties = kept_shapes(config) | base_properties(config)
    if config.target_device == "CPU" and is_small(network(config.model_dir)):
        properties["INFERENCE_NUM_THREADS"] = 1
    properties.update({key: value for name, key in PROPERTIES.items() if (value := config.value(name))})
    properties.update(read_object("plugin_config", config.plugin_config))
    if config.batch_invariant and not any(properties.get(name) for name in (BOTH, KEYS, VALUES)):
        properties[BOTH] = "f32"  # in u8, rounding depends on which tokens are written to a block together
    return properties | (cache_properties(properties) if config.target_device == "CPU" else {})


def is_small(file: Path) -> bool:
    """Returns whether the weights of a network are so small that its steps are short."""
    return 0 < network_bytes(file) < SMALL_NETWORK


def network_bytes(file: Path) -> int:
    """Returns the size of a network's weights in bytes; 0 if they cannot be read."""
    return weights_bytes(file.with_suffix(".bin") if file.suffix == ".xml" else file)


GROUPS = (("u8", "u4"), ("f16", "bf16"), ("f32",))
"""Groups of precisions that can be combined for keys and values. OpenVINO (2026.4) has attention kernels for keys and
values that are both compressed, or both of the same precision; with any other pair, loading fails with an unclear
message."""
DEFAULT = "u8"
"""The default precision of the KV cache on the CPU."""


def cache_properties(properties: dict[str, Any]) -> dict[str, str]:
    """Returns the additional properties that a network needs for the precisions of keys and values on the CPU.

    If only one of the two is set, the other is u8 if that combines with it, or else the same precision. A cache in f32
    needs a network that computes in f32. Raises StartError if the CPU does not support the combination.
    """
    named = {name: str(properties[name]).lower() for name in (BOTH, KEYS, VALUES) if properties.get(name)}
    if not named:
        return {}
    for name, kind in named.items():
        if not any(kind in group for group in GROUPS):
            raise StartError(f"--{name.lower()} must be one of: {', '.join(sum(GROUPS, ()))}, not {kind}")
    alone = named.get(BOTH) or (DEFAULT if DEFAULT in _group(named.get(KEYS) or named[VALUES]) else "")
    keys = named.get(KEYS) or alone or named[VALUES]
    values = named.get(VALUES) or alone or named[KEYS]
    asked = ", ".join(f"--{name.lower()} {kind}" for name, kind in named.items())
    if values not in _group(keys):
        allowed = "; ".join(" or ".join(group) for group in GROUPS)
        raise StartError(
            f"{asked}: keys in {keys} and values in {values} cannot be combined; supported combinations are {allowed}"
        )
    hint = str(properties.get(HINT) or "").lower()
    if hint and (hint != "f32" if keys == "f32" else hint == "f32" and "bf16" in (keys, values)):
        raise StartError(f"{asked} is not supported if {HINT} of --plugin_config is {hint}")
    found = {} if BOTH in named else {KEYS: keys, VALUES: values}
    return {**found, HINT: "f32"} if keys == "f32" else found


def _group(kind: str) -> tuple[str, ...]:
    return next(group for group in GROUPS if kind in group)


def describe(
    config: EngineConfig, settings: PipelineSettings, blocks: int, tokenizer: Any, ends: Iterable[int]
) -> ModelInfo:
    """Returns the properties of the model for the front end.

    Args:
        config: The engine's configuration.
        settings: The settings of its pipeline.
        blocks: The number of blocks in the pipeline's KV cache.
        tokenizer: The tokenizer of openvino_genai.
        ends: The tokens that end an answer, besides the tokenizer's; negative ones stand for none.
    """
    genai = sys.modules.get("openvino_genai")  # single-file models do not need it
    eos = {*map(int, ends), int(tokenizer.get_eos_token_id())}
    return ModelInfo(
        vocab_size=settings.vocab_size or len(tokenizer.get_vocab()),
        context_length=settings.context,
        kv_blocks=blocks,
        block_size=settings.block_size,
        kv_precision="/".join(dict.fromkeys(kv_precisions(config, settings.properties))),
        eos_token_ids=sorted(i for i in eos if i >= 0),
        pad_token_id=max(0, int(tokenizer.get_pad_token_id())),
        bos_token=tokenizer.get_bos_token(),
        eos_token=tokenizer.get_eos_token(),
        chat_template=tokenizer.get_original_chat_template(),
        speculative=settings.speculative,
        prefix_caching=settings.prefix_caching,
        versions={"openvino": ov.get_version(), **({"openvino_genai": genai.__version__} if genai else {})},
    )
