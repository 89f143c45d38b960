"""Flags of vLLM, llama.cpp and OVMS: other names of our options; foreign_flags.txt has those that have no option here.

docs/coming_from.md has these tables.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from ..config import shown
from ..errors import StartError

T = TypeVar("T")
OVMS, VLLM, LLAMA_CPP = "OVMS", "vLLM", "llama.cpp"
PROGRAMS = ("vllm", "ovms", "ollama", "llama-server")
"""Programs whose command lines may be pasted behind ours, with their names."""
HUB_MODEL = re.compile(r"(?:(?:https://)?(?:hf\.co|huggingface\.co)/)?([\w-][\w.-]*/[\w-][\w.-]*)(?::([\w.-]+))?")
"""Matches organisation/name, as hubs have them, and the quantization of a GGUF file behind a colon."""


@dataclass(frozen=True, slots=True)
class Alias:
    """Another server's name of an option.

    names: its flags, short ones with their hyphen. bare: the option's value for the flag alone; ""
    if it needs one.
    read: the value in our notation, or the values of several options; raises ValueError with what is allowed.
    further: the option that takes all values but the first; "" if the flag takes one. separator: between them; "" if
    they are arguments of their own.
    """

    option: str
    server: str
    names: tuple[str, ...]
    bare: str = ""
    read: Callable[[str], str | dict[str, str]] = str
    further: str = ""
    separator: str = ""


def _model_len(text: str) -> str:
    """Reads vLLM's number of tokens for people: 8k is 8,000, 8K is 8,192; -1 and auto are the model's own length."""
    if text in ("auto", "-1"):
        return "0"
    units = {"k": 1000, "K": 1024, "m": 1_000_000, "M": 1 << 20}
    if text[-1:] not in units:
        return text
    try:
        return str(int(float(text[:-1]) * units[text[-1]]))
    except ValueError:
        raise ValueError("a number of tokens, such as 8192 or 8k") from None


def _generation_config(text: str) -> str:
    """Reads vLLM's --generation-config. auto: the model's; vllm: none; otherwise a directory."""
    if text == "auto":
        return ""
    return "none" if text == "vllm" else f"{text.rstrip('/')}/generation_config.json"


def _json_list(text: str) -> str:
    """Reads a JSON list of strings, or the text itself."""
    if not text.startswith("["):
        return text
    values = json.loads(text)
    if not all(isinstance(value, str) for value in values):
        raise ValueError("a JSON list of strings")
    return ",".join(values)


def _images(text: str) -> str:
    """Reads {"image": 4} or image=4."""
    limits = json.loads(text) if text.startswith("{") else dict([text.split("=", 1)])
    if set(limits) != {"image"}:
        raise ValueError('{"image": N}; only images are limited')
    return str(limits["image"])


def _cache_type(text: str) -> str:
    """Translates KV cache types of vLLM and llama.cpp to OpenVINO's names."""
    known = {"auto": "", "float16": "f16", "bfloat16": "bf16", "int8": "u8", "q8_0": "u8", "q4_0": "u4"}
    return known.get(text, text)


def _words(known: Mapping[str, T]) -> Callable[[str], T]:
    """Returns a reader of one of a few words."""

    def read_word(text: str) -> T:
        if text not in known:
            raise ValueError(f"one of {', '.join(known)}")
        return known[text]

    return read_word


_reasoning = _words({"auto": "", "on": '{"enable_thinking": true}', "off": '{"enable_thinking": false}'})
"""Translates llama.cpp's on and off to the templates' variable; auto leaves it to the template."""
_reasoning_format = _words({"none": "none", "auto": "", "deepseek": ""})
"""Translates llama.cpp's none, which leaves reasoning in the text."""


def _reasoning_effort(text: str) -> str:
    """Reads llama.cpp's level of reasoning; default leaves it to the template."""
    return "" if text == "default" else json.dumps({"reasoning_effort": text})


def _reasoning_budget(text: str) -> str:
    """Reads llama.cpp's budget of reasoning: 0 switches it off, -1 is none. Others are fields of a request."""
    if text not in ("0", "-1"):
        raise ValueError("0 or -1; send thinking_token_budget with a request for others")
    return "" if text == "-1" else _reasoning("off")


def _n_predict(text: str) -> dict[str, str]:
    """Reads llama.cpp's limit of new tokens, to which a request's own is lowered; -1 and -2 are none."""
    return {} if text in ("-1", "-2") else {"max_tokens_limit": text, "clamp_max_tokens": "true"}


def _idle_seconds(text: str) -> str:
    """Reads llama.cpp's idle time, where -1 is never."""
    return "0" if text == "-1" else text


def _gigabytes(text: str) -> str:
    """Reads vLLM's size of the KV cache in bytes, also 4g or 4G. Returns whole GB, one at least."""
    units = {"k": 10**3, "K": 1 << 10, "m": 10**6, "M": 1 << 20, "g": 10**9, "G": 1 << 30}
    size = float(text[:-1]) * units[text[-1]] if text[-1:] in units else float(text)
    return str(max(1, round(size / (1 << 30))))


def _megabytes(text: str) -> str:
    """Returns the bytes in a whole number of MB."""
    if not text.isdecimal():
        raise ValueError("a whole number of MB")
    return str(int(text) << 20)


def _grammar_library(text: str) -> str:
    """Reads {"backend": "xgrammar"}; other members have no counterpart."""
    config = json.loads(text)
    if set(config) - {"backend"}:
        raise ValueError('{"backend": NAME}')
    return str(config.get("backend", "auto"))


def _strict_tools(text: str) -> str:
    if text not in ("auto", "parameter"):
        raise ValueError("auto or parameter")
    return "true" if text == "parameter" else "false"


def _threads(text: str) -> str:
    return json.dumps({"INFERENCE_NUM_THREADS": int(text)})


def _precision(text: str) -> str:
    known = {"auto": "", "float32": "f32", "float": "f32", "bfloat16": "bf16", "float16": "f16", "half": "f16"}
    precision = _words(known)(text)
    return json.dumps({"INFERENCE_PRECISION_HINT": precision}) if precision else ""


def hub_model(text: str) -> dict[str, str]:
    """Reads a hub's model as llama.cpp and Ollama name it: ORG/NAME, ORG/NAME:Q4_K_M, hf.co/ORG/NAME."""
    found = HUB_MODEL.fullmatch(text)
    name, quantization = found.groups() if found else (text, "")
    file = {"gguf_filename": quantization} if quantization and quantization != "latest" else {}
    return {"source_model": name, **file}


def _default_of(field: str) -> Callable[[str], str]:
    """Returns a reader of a number that is the default of a request's field."""

    def read_number(text: str) -> str:
        try:
            return json.dumps({field: int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)})
        except ValueError:
            raise ValueError("a number") from None

    return read_number


def _seed(text: str) -> str:
    """Reads llama.cpp's seed, where -1 is a random one."""
    return "" if text == "-1" else _default_of("seed")(text)


def _pooling(text: str) -> str:
    """Reads llama.cpp's kinds: none keeps the vectors of all tokens, rank is what a reranker's files say."""
    return {"none": "ALL", "rank": ""}.get(text, text.upper())


_SPECULATIVE = {"method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min"}
_LOOKUP = {"prompt_lookup": "true"}
_LONG_LOOKUP = _LOOKUP | {"override_generation_config": '{"num_assistant_tokens": 24, "max_ngram_size": 24}'}
_EAGLE3, _MTP = {"draft_eagle3_mode": "true"}, {"mtp": "true"}
_METHODS: dict[str, dict[str, str]] = {
    "none": {"ngram_speculation": "false", "mtp": "false"},
    **dict.fromkeys(("ngram", "ngram-simple", "ngram-map-k", "ngram-map-k4v"), _LOOKUP),
    **dict.fromkeys(("ngram-mod", "suffix"), _LONG_LOOKUP),
    **{name: {} for name in ("draft_model", "draft-simple", "dflash", "draft-dflash")},
    **dict.fromkeys(("eagle3", "draft-eagle3"), _EAGLE3),
    **dict.fromkeys(("mtp", "draft-mtp"), _MTP),
}
"""Methods of speculative decoding by vLLM's and llama.cpp's names; a draft model is named by another flag."""


_method = _words(_METHODS)
"""Reads vLLM's --spec-method and llama.cpp's --spec-type."""


def _speculative(text: str) -> dict[str, str]:
    """Reads vLLM's speculative decoding: {"method": "ngram"}, or {"model": a directory or a hub's model}."""
    config = json.loads(text)
    method, model = config.get("method") or "draft_model", config.get("model", "")
    needs_model = str(method).endswith(("draft_model", "draft-simple", "eagle3", "dflash"))
    if set(config) - _SPECULATIVE or method not in _METHODS or (needs_model and not model):
        methods = '"ngram", "suffix", "draft_model", "mtp", "eagle3" or "dflash"'
        raise ValueError(f'{{"method": {methods}, "model": of a draft model, "num_speculative_tokens": N}}')
    if "prompt_lookup_min" in config:
        print("lean_ovms: prompt_lookup_min has no effect: matches of three tokens are tried, too", file=sys.stderr)
    names = {"num_assistant_tokens": "num_speculative_tokens", "max_ngram_size": "prompt_lookup_max"}
    options = dict(_METHODS[method])
    if defaults := {ours: config[name] for ours, name in names.items() if name in config}:
        field = "override_generation_config"
        options[field] = json.dumps(json.loads(options.get(field, "{}")) | defaults)
    if needs_model:
        options["draft_model_path" if os.path.exists(model) else "draft_source_model"] = model
    return options


PARSERS = {
    "hermes": "hermes3", "llama3_json": "llama3", "llama4_pythonic": "pythonic", "qwen3_coder": "qwen3coder",
    "qwen3_xml": "qwen3coder", "openai": "gptoss", "glm45": "glm4_moe",
    "granite4": "granite", "phi4_mini_json": "phi4", "qwen": "hermes3", "internlm": "internlm2",
    "glm47": "glm4_moe", "step3p5": "qwen3coder", "mimo": "qwen3coder", "qwen3_json": "hermes3",
    "llama4_json": "llama3", "cohere_command3": "cohere_command", "cohere_command4": "cohere_command",
    "granite-20b-fc": "granite_20b_fc", "step5": "qwen3coder", "ling3": "glm4_moe", "poolside_v1": "glm4_moe",
    "muse": "onyx", "muse_glimmer": "onyx", "musespark1x": "onyx",
}  # fmt: skip
"""vLLM's tool parsers that have another name here; those of the same name need no row."""
REASONING = {"openai_gptoss": "gptoss", "deepseek_v3": "deepseek_r1", "step3": "deepseek_r1"} | {
    **dict.fromkeys(("cohere_command3", "cohere_command4"), "cohere_command"),
    **dict.fromkeys(("glm45", "glm47", "holo2", "mimo", "nemotron_v3", "olmo3"), "qwen3"),
    **dict.fromkeys(("granite_thinking_parser", "ling3", "minicpmv", "poolside_v1", "step3p5"), "qwen3"),
    **dict.fromkeys(("muse", "muse_glimmer", "musespark1x"), "onyx"),
    "step5": "deepseek_r1",
}
"""vLLM's reasoning parsers that have another name here; most models think between the same tags."""

TASKS = {
    **dict.fromkeys(("auto", "none"), ""),
    **dict.fromkeys(("embed", "embedding"), "embeddings"),
    "generate": "text_generation",
    "score": "rerank",
    "reward": "classify",
    "transcription": "speech2text",
}
"""vLLM's tasks, and kinds of model into which it converts one, that have another name here."""

ALIASES = (
    Alias("model_idle_timeout_s", OVMS, ("idle_unload_timeout_seconds",)),
    Alias("max_model_len", OVMS, ("max_length",)),
    Alias("rest_bind_address", VLLM, ("host",)),
    Alias("rest_port", VLLM, ("port",)),
    Alias("unix_socket", VLLM, ("uds",)),
    Alias("model_name", VLLM, ("served_model_name",), further="model_aliases"),
    Alias("api_key", VLLM, ("api_key",)),
    Alias("tool_parser", VLLM, ("tool_call_parser",), read=lambda text: PARSERS.get(text, text)),
    Alias("reasoning_parser", VLLM, ("reasoning_parser",), read=lambda text: REASONING.get(text, text)),
    Alias("plugin_config", VLLM, ("dtype",), read=_precision),
    Alias("task", VLLM, ("task", "convert"), read=lambda text: TASKS.get(text, text)),
    Alias("max_model_len", VLLM, ("max_model_len",), read=_model_len),
    Alias("kv_cache_precision", VLLM, ("kv_cache_dtype",), read=_cache_type),
    Alias("enable_prefix_caching", VLLM, ("no_enable_prefix_caching",), bare="false"),
    Alias("dynamic_split_fuse", VLLM, ("enable_chunked_prefill",), bare="true"),
    Alias("dynamic_split_fuse", VLLM, ("no_enable_chunked_prefill",), bare="false"),
    Alias("generation_config_path", VLLM, ("generation_config",), read=_generation_config),
    Alias("max_images", VLLM, ("limit_mm_per_prompt",), read=_images),
    Alias("access_log", VLLM, ("disable_uvicorn_access_log",), bare="false"),
    Alias("log_level", VLLM, ("uvicorn_log_level",), read=str.upper),
    Alias("log_prompts", VLLM, ("enable_log_requests",), bare="true"),
    Alias("model_repository_path", VLLM, ("download_dir",)),
    Alias("allowed_origins", VLLM, ("allowed_origins",), read=_json_list),
    Alias("allowed_methods", VLLM, ("allowed_methods",), read=_json_list),
    Alias("allowed_headers", VLLM, ("allowed_headers",), read=_json_list),
    Alias("drain_timeout_s", VLLM, ("shutdown_timeout",)),
    Alias("sse_ping_s", VLLM, ("sse_keep_alive_interval",)),
    Alias("max_queued_requests", VLLM, ("max_num_queued_reqs",)),
    Alias("max_num_batched_tokens", VLLM, ("max_num_scheduled_tokens",)),
    Alias("cache_size", VLLM, ("kv_cache_memory_bytes",), read=_gigabytes),
    Alias("structured_output_backend", VLLM, ("structured_outputs_config",), read=_grammar_library),
    Alias("enable_tool_guided_generation", VLLM, ("tool_strict_level",), read=_strict_tools),
    Alias("draft_model_path", VLLM, ("spec_model",)),
    Alias("prompt_lookup", VLLM, ("speculative_config",), read=_speculative),
    Alias("prompt_lookup", VLLM, ("spec_method",), read=_method),
    Alias("override_generation_config", VLLM, ("spec_tokens",), read=_default_of("num_assistant_tokens")),
    Alias("max_header_bytes", VLLM, ("h11_max_incomplete_event_size",)),
    Alias("override_generation_config", LLAMA_CPP, ("temp", "temperature"), read=_default_of("temperature")),
    Alias("override_generation_config", LLAMA_CPP, ("top_p",), read=_default_of("top_p")),
    Alias("override_generation_config", LLAMA_CPP, ("top_k",), read=_default_of("top_k")),
    Alias("override_generation_config", LLAMA_CPP, ("min_p",), read=_default_of("min_p")),
    Alias("override_generation_config", LLAMA_CPP, ("repeat_penalty",), read=_default_of("repetition_penalty")),
    Alias("override_generation_config", LLAMA_CPP, ("presence_penalty",), read=_default_of("presence_penalty")),
    Alias("override_generation_config", LLAMA_CPP, ("frequency_penalty",), read=_default_of("frequency_penalty")),
    Alias("override_generation_config", LLAMA_CPP, ("-s", "seed"), read=_seed),
    Alias("pooling", LLAMA_CPP, ("pooling",), read=_pooling),
    Alias("model_path", LLAMA_CPP, ("-m",)),
    Alias("source_model", LLAMA_CPP, ("-hf", "-hfr", "hf_repo"), read=hub_model),
    Alias("gguf_filename", LLAMA_CPP, ("-hff", "hf_file")),
    Alias("max_model_len", LLAMA_CPP, ("-c", "ctx_size"), read=_model_len),
    Alias("max_num_seqs", LLAMA_CPP, ("-np", "parallel")),
    Alias("max_tokens_limit", LLAMA_CPP, ("-n", "predict", "n_predict"), read=_n_predict),
    Alias("model_name", LLAMA_CPP, ("-a", "alias"), further="model_aliases", separator=","),
    Alias("plugin_config", LLAMA_CPP, ("-t", "threads"), read=_threads),
    Alias("target_device", LLAMA_CPP, ("-dev", "device")),
    Alias("key_cache_precision", LLAMA_CPP, ("-ctk", "cache_type_k"), read=_cache_type),
    Alias("value_cache_precision", LLAMA_CPP, ("-ctv", "cache_type_v"), read=_cache_type),
    Alias("draft_model_path", LLAMA_CPP, ("-md", "model_draft", "spec_draft_model")),
    Alias("draft_source_model", LLAMA_CPP, ("-hfd", "-hfrd", "hf_repo_draft", "spec_draft_hf")),
    Alias("prompt_lookup", LLAMA_CPP, ("spec_type",), read=_method),
    Alias("prompt_lookup", LLAMA_CPP, ("spec_default",), bare="true"),
    Alias("chat_template", LLAMA_CPP, ("chat_template_file",)),
    Alias("default_chat_template_kwargs", LLAMA_CPP, ("chat_template_kwargs",)),
    Alias("default_chat_template_kwargs", LLAMA_CPP, ("-rea", "reasoning"), read=_reasoning),
    Alias("default_chat_template_kwargs", LLAMA_CPP, ("reasoning_budget",), read=_reasoning_budget),
    Alias("default_chat_template_kwargs", LLAMA_CPP, ("reasoning_effort",), read=_reasoning_effort),
    Alias("reasoning_parser", LLAMA_CPP, ("reasoning_format",), read=_reasoning_format),
    Alias("root_path", LLAMA_CPP, ("api_prefix",)),
    Alias("sse_ping_s", LLAMA_CPP, ("sse_ping_interval",), read=_idle_seconds),
    Alias("ssl_keyfile", LLAMA_CPP, ("ssl_key_file",)),
    Alias("ssl_certfile", LLAMA_CPP, ("ssl_cert_file",)),
    Alias("metrics_enable", LLAMA_CPP, ("metrics",), bare="true"),
    Alias("web_page", LLAMA_CPP, ("no_webui", "no_ui"), bare="false"),
    Alias("log_path", LLAMA_CPP, ("log_file",)),
    Alias("log_level", LLAMA_CPP, ("-v", "verbose", "log_verbose"), bare="DEBUG"),
    Alias("model_repository_path", LLAMA_CPP, ("models_dir",)),
    Alias("load_models", LLAMA_CPP, ("models_autoload",), bare="request"),
    Alias("max_loaded_models", LLAMA_CPP, ("models_max",)),
    Alias("model_idle_timeout_s", LLAMA_CPP, ("sleep_idle_seconds",), read=_idle_seconds),
    Alias("allowed_local_media_path", LLAMA_CPP, ("media_path",)),
    Alias("allowed_origins", LLAMA_CPP, ("cors_origins",)),
    Alias("allowed_methods", LLAMA_CPP, ("cors_methods",)),
    Alias("allowed_headers", LLAMA_CPP, ("cors_headers",)),
    Alias("allow_credentials", LLAMA_CPP, ("cors_credentials",), bare="true"),
    Alias("allow_credentials", LLAMA_CPP, ("no_cors_credentials",), bare="false"),
)
"""Flags of other servers, in the order of the documentation. A flag with the name of our option is listed if it writes
values in another notation."""

VARIABLES = (
    Alias("api_key", VLLM, ("VLLM_API_KEY",)),
    Alias("max_audio_file_bytes", VLLM, ("VLLM_MAX_AUDIO_CLIP_FILESIZE_MB",), read=_megabytes),
)
"""Environment variables of other servers; our own have precedence."""


def _table() -> tuple[dict[str, str], dict[str, str], frozenset[str], frozenset[str]]:
    """Reads foreign_flags.txt: ignored and refused flags with their reasons, OVMS's flags, and those with paths."""
    effects: dict[str, dict[str, str]] = {"ignored": {}, "refused": {}}
    ovms: set[str] = set()
    paths: set[str] = set()
    server = effect = reason = ""
    for line in files(__package__).joinpath("foreign_flags.txt").read_text("utf-8").splitlines():
        if line and not line.startswith(("#", " ")):
            server, effect, reason = line.split(": ", 2)
        for name, _, path in (word.partition("=") for word in line.split() if line.startswith(" ")):
            effects[effect][name] = reason
            paths |= {name} if path else set()
            ovms |= {name} if server == OVMS else set()
    return effects["ignored"], effects["refused"], frozenset(ovms), frozenset(paths)


IGNORED, REFUSED, OVMS_FLAGS, WITH_PATHS = _table()
"""Flags whose absence changes no response, and flags that cannot be ignored, each with the reason."""


def flag(name: str) -> str:
    """Returns a name of these tables as it is typed."""
    return name if name.startswith("-") else "--" + name


def read(alias: Alias, typed: str, text: str) -> dict[str, str]:
    """Returns the options that a flag sets, in their notation. typed: the flag, for the message. Raises StartError."""
    try:
        found = alias.read(text)
    except (ValueError, TypeError, AttributeError) as error:
        allowed = str(error) if not isinstance(error, json.JSONDecodeError) else f"JSON ({error})"
        raise StartError(f"{typed} takes {allowed}, not {text!r}") from None
    return found if isinstance(found, dict) else {alias.option: found}


@cache
def _objects() -> frozenset[str]:
    """Returns the options whose values are JSON objects."""
    return frozenset(row.name for row in shown() if row.metadata["json_object"])


def merge(option: str, first: Any, second: str) -> str:
    """Merges two values for one option: JSON objects are joined; of other values the second counts."""
    if option in _objects() and first and second:
        try:
            return json.dumps(json.loads(first) | json.loads(second))
        except (ValueError, TypeError):
            return str(first)  # the option's own check reports what is wrong with it
    return second or str(first or "")
