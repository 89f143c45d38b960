"""API keys: which client sends a request, and whether it may use the route.

The core has one key that all clients share. A feature may add keys that differ by client: it supplies a class derived
from `ApiKeys`, whose keys are derived from `ApiKey`.
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
    """An API key. This base class is the key that all clients share, without limits."""

    name = ""
    """The name of the key in logs; empty for none."""
    client = ""
    """The client whose fair share the requests use, a name that no address could have; empty to use the address."""
    models: tuple[str, ...] = ()
    """Patterns of the names of models that the key may use; () for every model."""
    cache_scope = ""
    """The scope in which prompts are cached, shared by keys of the same scope; empty for the scope of all."""

    def __init__(self, digest: bytes) -> None:
        """Creates a key that is known by its SHA-256 hash."""
        self.digest = digest

    def admit(self, route: Route, request: Request, record: RequestRecord) -> None:
        """Counts a request against the limits of this key. Raises Forbidden or TooManyRequests if it may not run."""

    def generation_finished(self, generation: GenerationRecord, model: str) -> None:
        """Counts the tokens that a model generated for this key."""

    def headers(self) -> list[tuple[str, str]]:
        """Returns the headers that responses to requests with this key get."""
        return []


class ApiKeys:
    """Holds the API keys of a server, and checks every request. A server without a key is open to all."""

    def __init__(self, config: Config) -> None:
        """Creates the key that the options set. Raises WrongOptions if the keys of a feature cannot be read."""
        self._config = config
        self.keys: Collection[ApiKey] = (ApiKey(digest_of(config.api_key)),) if config.api_key else ()

    @classmethod
    def own_key(cls, config: Config) -> str:
        """Returns the key that the program's own command-line clients send. Raises WrongOptions."""
        return config.api_key

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        return bool(self._config.api_key)

    def find(self, request: Request) -> ApiKey | None:
        """Returns the key of a request, or None.

        The key is a bearer token or, as Anthropic's clients send it, x-api-key. All keys are compared, so that the time
        reveals nothing. A request that the server sends itself on behalf of a client has that client's key.
        """
        if not self.keys:
            return None
        if client := request.on_behalf_of:
            return next((key for key in self.keys if key.client in ("", client)), None)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        secrets = [bearer] if scheme.lower() == "bearer" else []
        secrets += [request.headers["x-api-key"]] if "x-api-key" in request.headers else []
        secrets += [request.api_key] if request.api_key else []
        # Not all that latin-1 takes for white space: it may be a byte of a letter of another alphabet.
        digests = [hashlib.sha256(secret.strip(" \t").encode("latin-1", "replace")).digest() for secret in secrets]
        matches = [key for one in digests for key in self.keys if hmac.compare_digest(one, key.digest)]
        return matches[0] if matches else None

    def check(self, route: Route, request: Request, key: ApiKey | None, record: RequestRecord) -> None:
        """Checks the key of a request for a route. Raises Unauthorized, Forbidden or TooManyRequests."""
        if not (self.required and self.guards(route)):
            return
        if key is None:
            raise Unauthorized("Unauthorized request due to invalid or missing api-key; send Authorization: Bearer KEY")
        key.admit(route, request, record)

    def guards(self, route: Route) -> bool:
        """Returns whether a route needs a key."""
        return route.auth in ("key", "admin") or (route.auth == "models" and self._config.protect_models)

    def cache_scopes(self, names: Collection[str]) -> list[str]:
        """Returns the prefix cache's scopes for a model with these names, within which prompts share blocks."""
        return [""]

    async def reload(self) -> None:
        """Reads the keys again, so that revoked keys are refused. Raises WrongOptions, which keeps the old keys."""

    async def watch(self, period_s: float) -> None:
        """Reads the keys again every `period_s` seconds if they may have changed; returns at once if they cannot."""

    async def close(self) -> None:
        """Saves the state of the keys. Idempotent."""


def kind_of(config: Config) -> type[ApiKeys]:
    """Returns the class of the keys of a server with these options."""
    found: type[ApiKeys] | None = config.part(API_KEYS)
    return found or ApiKeys


def digest_of(secret: str) -> bytes:
    """Returns the SHA-256 hash of a key. The text of a header stands for its bytes, which are hashed."""
    return hashlib.sha256(secret.encode()).digest()


def authorization(secret: str) -> str:
    """Returns the Authorization header for a key, with one character for each byte of it, as headers are read."""
    return f"Bearer {secret}".encode().decode("latin-1")
