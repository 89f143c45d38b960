"""The manifest of named API keys."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...config.options import Options, option
from ...manifest import API_KEYS, BASES, Feature, Metric, PartRow, Route


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class KeyOptions(Options):
    """The options for the API keys of a server, and the file with their usage."""

    api_key_file: str = option(
        "",
        "file with the API key in its first line, or a JSON object with the hashes of several named keys, their "
        "roles and limits (lean_ovms/features/named_keys/README.md). If it is empty, API_KEY is the key. With named "
        "keys, this program's own commands send API_KEY",
        group="listen",
        common=True,
    )
    api_key_usage_file: str = option(
        "",
        "file that keeps the usage of named API keys and may be shared by several servers; if empty, counting "
        "restarts with the server",
        group="listen",
    )


_counter = partial(Metric, kind="counter", labels=("api_key_name", "model_name"), lasting=False)

FEATURE = Feature(
    name="named_keys",
    summary="reads API keys with names, roles, models and limits from a file, and counts the usage of each",
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
    samples="keys:samples",
    parts=(PartRow(seam=API_KEYS, make="keys:NamedKeys", options=("api_key_file", "api_key_usage_file")),),
)
