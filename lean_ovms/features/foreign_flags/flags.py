"""Translates values of other servers' flags for which flags.txt has no notation.

Each function returns the value of this server's option, or the values of several options, and raises ValueError with
the allowed values.
"""

from __future__ import annotations

import json

from ...cli import arguments


def tokens(text: str) -> str:
    """Translates vLLM's numbers of tokens: 8k is 8,000, 8K is 8,192, and -1 and auto mean the model's own length."""
    if text in ("auto", "-1"):
        return "0"
    units = {"k": 1000, "K": 1024, "m": 1_000_000, "M": 1 << 20}
    if text[-1:] not in units:
        return text
    try:
        return str(int(float(text[:-1]) * units[text[-1]]))
    except (ValueError, OverflowError):
        raise ValueError("a number of tokens, such as 8192 or 8k") from None


def generation_config(text: str) -> str:
    """Translates vLLM's --generation-config. auto: the model's own; vllm: none; otherwise a directory."""
    if text == "auto":
        return ""
    return "none" if text == "vllm" else f"{text.rstrip('/')}/generation_config.json"


def texts(text: str) -> str:
    """Translates a JSON list of strings, or a plain text."""
    if not text.startswith("["):
        return text
    values = json.loads(text)
    if not all(isinstance(value, str) for value in values):
        raise ValueError("a JSON list of strings")
    return ",".join(values)


def images(text: str) -> str:
    """Translates a limit of images, {"image": 4} or image=4."""
    limits = json.loads(text) if text.startswith("{") else dict([text.partition("=")[::2]])
    if set(limits) != {"image"} or not str(limits["image"]).isdecimal():
        raise ValueError('{"image": N}, since only images are limited')
    return str(limits["image"])


def reasoning_effort(text: str) -> str:
    """Translates llama.cpp's level of reasoning; "default" leaves it to the chat template."""
    return "" if text == "default" else json.dumps({"reasoning_effort": text})


def reasoning_budget(text: str) -> dict[str, str]:
    """Translates llama.cpp's budget of reasoning, a number of tokens: 0 is no reasoning, -1 no limit."""
    if text == "0":
        return {"default_chat_template_kwargs": json.dumps({"enable_thinking": False})}
    if text != "-1" and not text.isdecimal():
        raise ValueError("a number of tokens, 0 for no reasoning, or -1 for no limit")
    return {} if text == "-1" else {"override_generation_config": json.dumps({"thinking_token_budget": int(text)})}


def new_tokens(text: str) -> dict[str, str]:
    """Translates llama.cpp's limit of new tokens, to which a request's own is lowered; -1 and -2 mean no limit."""
    return {} if text in ("-1", "-2") else {"max_tokens_limit": text, "clamp_max_tokens": "true"}


def gigabytes(text: str) -> str:
    """Translates vLLM's size of the KV cache, in bytes or as 4g or 4G, to whole GB, at least one."""
    units = {"k": 10**3, "K": 1 << 10, "m": 10**6, "M": 1 << 20, "g": 10**9, "G": 1 << 30}
    try:
        size = float(text[:-1]) * units[text[-1]] if text[-1:] in units else float(text)
        return str(max(1, round(size / (1 << 30))))
    except (ValueError, OverflowError):
        raise ValueError("a number of bytes, such as 4294967296 or 4G") from None


def megabytes(text: str) -> str:
    """Translates a number of MB to bytes."""
    if not text.isdecimal():
        raise ValueError("a whole number of MB")
    return str(int(text) << 20)


def logging(text: str) -> dict[str, str]:
    """Translates vLLM's configuration of the log."""
    values, options = json.loads(text), {"log_level": "log_level", "formatter": "log_format"}
    if not isinstance(values, dict) or not values.keys() <= options.keys():
        raise ValueError('{"log_level": LEVEL, "formatter": "text" or "json"}; other members are not supported')
    return {options[name]: str(value) for name, value in values.items()}


def threads(text: str) -> str:
    """Translates a number of threads to OpenVINO's property; 0 and -1 leave it to the library."""
    if not text.removeprefix("-").isdecimal():
        raise ValueError("a whole number of threads")
    return json.dumps({"INFERENCE_NUM_THREADS": max(0, int(text))})


def hub_model(text: str) -> dict[str, str]:
    """Translates the name of a hub's model to the options that a positional argument would set."""
    return arguments.hub_model(text)
