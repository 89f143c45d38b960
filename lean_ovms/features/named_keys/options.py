"""The options of named API keys."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import Options, option


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class KeyOptions(Options):
    """Which API keys a server has, and where it keeps what is used with them."""

    api_key_file: str = option(
        "",
        "file with the API key in its first line, or a JSON object with the hashes of several named keys, their roles"
        " and limits (lean_ovms/features/named_keys/README.md); empty: the environment variable API_KEY is the key."
        " With named keys API_KEY is the one that this program's own commands send",
        group="listen",
    )
    api_key_usage_file: str = option(
        "",
        "file where the usage of named API keys is kept, which several servers may share; empty: it begins anew with "
        "each start",
        group="listen",
    )
