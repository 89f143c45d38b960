"""The manifest of named API keys."""

from __future__ import annotations

from functools import partial

from ...manifest import API_KEYS, BASES, Feature, Metric, PartRow, Route
from .options import KeyOptions

_counter = partial(Metric, kind="counter", labels=("api_key_name", "model_name"), lasting=False)

FEATURE = Feature(
    name="named_keys",
    summary="reads API keys from a file, with names, roles, models and limits, and counts what each has used",
    title="Usage by API key",
    reference="https://platform.openai.com/docs/api-reference/usage",
    options=KeyOptions,
    routes=(Route("GET", "/usage", "api:handle", BASES, auth="admin"),),
    metrics=(
        _counter("lean_ovms_api_key_requests_total", help="requests that used a named API key"),
        _counter("lean_ovms_api_key_rejections_total", help="requests beyond the limits of the key"),
        _counter("lean_ovms_api_key_prompt_tokens_total", help="prompt tokens of its requests"),
        _counter("lean_ovms_api_key_generation_tokens_total", help="tokens generated for its requests"),
    ),
    samples="metrics:samples",
    parts=(PartRow(seam=API_KEYS, make="keys:NamedKeys", options=("api_key_file", "api_key_usage_file")),),
)
