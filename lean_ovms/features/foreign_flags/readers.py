"""Translates values of other servers' flags, where flags.txt cannot.

Each returns the value in our notation, or several options with theirs, and raises ValueError with what is allowed.
"""

from __future__ import annotations

import json

from ...cli import arguments


def tokens(text: str) -> str:
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


def generation_config(text: str) -> str:
    """Reads vLLM's --generation-config. auto: the model's; vllm: none; otherwise a directory."""
    if text == "auto":
        return ""
    return "none" if text == "vllm" else f"{text.rstrip('/')}/generation_config.json"


def texts(text: str) -> str:
    """Reads a JSON list of strings, or the text itself."""
    if not text.startswith("["):
        return text
    values = json.loads(text)
    if not all(isinstance(value, str) for value in values):
        raise ValueError("a JSON list of strings")
    return ",".join(values)


def images(text: str) -> str:
    """Reads {"image": 4} or image=4."""
    limits = json.loads(text) if text.startswith("{") else dict([text.split("=", 1)])
    if set(limits) != {"image"}:
        raise ValueError('{"image": N}; only images are limited')
    return str(limits["image"])


def reasoning_effort(text: str) -> str:
    """Reads llama.cpp's level of reasoning; default leaves it to the template."""
    return "" if text == "default" else json.dumps({"reasoning_effort": text})


def reasoning_budget(text: str) -> str:
    """Reads llama.cpp's budget of reasoning: 0 switches it off, -1 is none. Others are fields of a request."""
    if text not in ("0", "-1"):
        raise ValueError("0 or -1; send thinking_token_budget with a request for others")
    return "" if text == "-1" else json.dumps({"enable_thinking": False})


def new_tokens(text: str) -> dict[str, str]:
    """Reads llama.cpp's limit of new tokens, to which a request's own is lowered; -1 and -2 are none."""
    return {} if text in ("-1", "-2") else {"max_tokens_limit": text, "clamp_max_tokens": "true"}


def gigabytes(text: str) -> str:
    """Reads vLLM's size of the KV cache in bytes, also 4g or 4G. Returns whole GB, one at least."""
    units = {"k": 10**3, "K": 1 << 10, "m": 10**6, "M": 1 << 20, "g": 10**9, "G": 1 << 30}
    size = float(text[:-1]) * units[text[-1]] if text[-1:] in units else float(text)
    return str(max(1, round(size / (1 << 30))))


def megabytes(text: str) -> str:
    """Returns the bytes in a whole number of MB."""
    if not text.isdecimal():
        raise ValueError("a whole number of MB")
    return str(int(text) << 20)


def threads(text: str) -> str:
    """Returns OpenVINO's property for a number of threads."""
    return json.dumps({"INFERENCE_NUM_THREADS": int(text)})


def hub_model(text: str) -> dict[str, str]:
    """Reads a hub's model, as a word without a flag is read."""
    return arguments.hub_model(text)
