"""Translates vLLM's and llama.cpp's names of methods of speculative decoding to options."""

from __future__ import annotations

import json
import os
import sys

_MEMBERS = {"method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min"}
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


def method(text: str) -> dict[str, str]:
    """Returns the options for the value of vLLM's --spec-method or llama.cpp's --spec-type."""
    if text not in _METHODS:
        raise ValueError(f"one of {', '.join(_METHODS)}")
    return _METHODS[text]


def speculative(text: str) -> dict[str, str]:
    """Returns the options for vLLM's speculative config: {"method": "ngram"}, or {"model": DIRECTORY or NAME}."""
    found = json.loads(text)
    config = found if isinstance(found, dict) else {"": found}
    chosen, model = config.get("method") or "draft_model", config.get("model", "")
    needs_model = str(chosen).endswith(("draft_model", "draft-simple", "eagle3", "dflash"))
    texts = isinstance(chosen, str) and isinstance(model, str)
    if config.keys() - _MEMBERS or not texts or chosen not in _METHODS or (needs_model and not model):
        methods = '"ngram", "suffix", "draft_model", "mtp", "eagle3" or "dflash"'
        raise ValueError(f'{{"method": {methods}, "model": the draft model, "num_speculative_tokens": N}}')
    if "prompt_lookup_min" in config:
        print("lean_ovms: prompt_lookup_min has no effect: matches of three tokens are always tried", file=sys.stderr)
    names = {"num_assistant_tokens": "num_speculative_tokens", "max_ngram_size": "prompt_lookup_max"}
    options = dict(_METHODS[chosen])
    if defaults := {ours: config[name] for ours, name in names.items() if name in config}:
        field = "override_generation_config"
        options[field] = json.dumps(json.loads(options.get(field, "{}")) | defaults)
    if needs_model:
        options["draft_model_path" if os.path.exists(model) else "draft_source_model"] = model
    return options
