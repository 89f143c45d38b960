"""The API keys: whose request it is, and whether it may run.

The core has one key, that of all clients. A feature may have keys that differ: it supplies a class derived from
`ApiKeys`, whose keys are derived from `ApiKey`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection

from ..config import Config
from ..errors import Unauthorized
from ..manifest import API_KEYS, Route
from ..observability.records import GenerationRecord, RequestRecord
from ..types import Request


class ApiKey:
    """A key. This one is that of all clients, who may do everything, as much as they like."""

    name = ""
    """The name in logs; empty: it has none."""
    client = ""
    """The client whose fair share its requests have: no name that an address could have; empty: the address is that."""
    models: tuple[str, ...] = ()
    """Patterns of the names of models that it may use; (): every model."""
    cache_scope = ""
    """The name of the scope in which it shares cached prompts with other keys; empty: it shares them with all."""

    def __init__(self, digest: bytes) -> None:
        """Keeps the hash of a key.

        Args:
            digest: The SHA-256 hash.
        """
        self.digest = digest

    def admit(self, route: Route, request: Request, record: RequestRecord) -> None:
        """Counts a request for a route. Raises Forbidden or TooManyRequests for one that may not run."""

    def generation_finished(self, generation: GenerationRecord, model: str) -> None:
        """Counts the tokens of a generation that a model has made."""

    def headers(self) -> list[tuple[str, str]]:
        """Returns the headers of the responses to its requests."""
        return []


class ApiKeys:
    """The keys of a server, and the one check of every request. Without a key all is open."""

    def __init__(self, config: Config) -> None:
        """Makes the key of the options. Raises WrongOptions where a feature cannot make its own."""
        self._config = config
        self.keys: Collection[ApiKey] = (ApiKey(digest_of(config.api_key)),) if config.api_key else ()

    @classmethod
    def own_key(cls, config: Config) -> str:
        """Returns the key that the program's own commands send. Raises WrongOptions."""
        return config.api_key

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        return bool(self._config.api_key)

    def find(self, request: Request) -> ApiKey | None:
        """Returns the key of a request: a bearer token or, as Anthropic's clients send it, x-api-key. All keys are
        compared, so that the time tells nothing. Of what the server sends itself, the key of that client."""
        if not self.keys:
            return None
        if client := request.on_behalf_of:
            return next((key for key in self.keys if key.client in ("", client)), None)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        secrets = [bearer] if scheme.lower() == "bearer" else []
        secrets += [request.headers["x-api-key"]] if "x-api-key" in request.headers else []
        secrets += [request.api_key] if request.api_key else []
        digests = [hashlib.sha256(secret.strip().encode("latin-1", "replace")).digest() for secret in secrets]
        matches = [key for one in digests for key in self.keys if hmac.compare_digest(one, key.digest)]
        return matches[0] if matches else None

    def check(self, route: Route, request: Request, key: ApiKey | None, record: RequestRecord) -> None:
        """Raises Unauthorized, Forbidden or TooManyRequests for a request that may not use a route."""
        if not (self.required and self.guards(route)):
            return
        if key is None:
            raise Unauthorized("Unauthorized request due to invalid or missing api-key")
        key.admit(route, request, record)

    def guards(self, route: Route) -> bool:
        """Returns whether requests for a route need a key."""
        return route.auth in ("key", "admin") or (route.auth == "models" and self._config.protect_models)

    def cache_scopes(self, names: Collection[str]) -> list[str]:
        """Returns the scopes in which the prompts of a model are cached, which has these names."""
        return [""]

    async def reload(self) -> None:
        """Reads the keys again; revoked ones are refused from now on. Raises WrongOptions, and then changes nothing."""

    async def watch(self, period_s: float) -> None:
        """Reads the keys again whenever they may have changed; returns at once where they never change.

        Args:
            period_s: The seconds between two looks.
        """

    async def close(self) -> None:
        """Writes what is to be kept. Idempotent."""


def kind_of(config: Config) -> type[ApiKeys]:
    """Returns the class of the keys of a server with these options."""
    found: type[ApiKeys] | None = config.part(API_KEYS)
    return found or ApiKeys


def without_keys(config: Config) -> Config:
    """Returns the same options for a server that asks for no key."""
    row = config.composition.parts.get(API_KEYS)
    return config.replace(api_key="", **dict.fromkeys(row.options if row is not None else (), ""))


def digest_of(secret: str) -> bytes:
    """Returns the hash by which a key of the options is known. (A header's text stands for bytes, which are hashed.)"""
    return hashlib.sha256(secret.encode()).digest()
