"""The API keys: whose request it is, what it may do, and how much of it. One table, for one key and for many."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import math
import time
from collections.abc import Callable, Collection
from pathlib import Path

from ..config import Config
from ..errors import Forbidden, TooManyRequests, Unauthorized, WrongOptions
from ..manifest import Route
from ..observability.logging import safe
from ..observability.records import GenerationRecord, KeyUsage, RequestRecord, permits
from ..types import Request
from ..util.files import file_stat
from ..util.plurals import counted
from ..websocket_types import PROTOCOLS_HEADER
from .key_file import INFERENCE, KeySpec, KeyTable, read_keys
from .key_usage import KeyUsages
from .routes import role_of

logger = logging.getLogger("lean_ovms.keys")

MINUTE_S = 60.0
KEY_SUBPROTOCOL = "openai-insecure-api-key."


class RateLimit:
    """What may be used in a minute: full at first, and refilled at an even rate. More may be used than is left, where
    the amount is known only afterwards; then nothing may be used until that is made up for."""

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.limit = limit
        self._clock = clock
        self._left, self._refilled_at = float(limit), clock()

    def left(self) -> float:
        """Returns what may be used now; negative if more than the limit was used."""
        now = self._clock()
        gained = (now - self._refilled_at) * self.limit / MINUTE_S
        self._left, self._refilled_at = min(float(self.limit), self._left + gained), now
        return self._left

    def use(self, amount: int) -> None:
        self._left = self.left() - amount

    def seconds_until(self, amount: int) -> float:
        """Returns how long it takes until so much is left."""
        return max(0.0, (amount - self.left()) * MINUTE_S / self.limit)


class ApiKey:
    """One key of the table, with what is used of its limits. It stays the same object when the file changes."""

    def __init__(self, spec: KeySpec, clock: Callable[[], float], usages: KeyUsages) -> None:
        self._clock = clock
        self._usages = usages
        self._running = 0
        self._rates: dict[str, RateLimit] = {}
        self.change(spec)

    def change(self, spec: KeySpec) -> None:
        """Takes what the file has for the key now. A limit that is the same is not filled again."""
        self.spec = spec
        limits = {"tokens": spec.tpm_limit, "requests": spec.rpm_limit}
        same = {unit: rate for unit, rate in self._rates.items() if rate.limit == limits[unit]}
        new = {unit: RateLimit(limit, self._clock) for unit, limit in limits.items() if limit and unit not in same}
        self._rates = same | new

    @property
    def name(self) -> str:
        """The name in logs and metrics; "" for the one key of all clients."""
        return self.spec.name

    @property
    def client(self) -> str:
        """The client whose fair share its requests have: no name that an address could have; "" for the address."""
        return f"key:{self.name}" if self.name else ""

    @property
    def models(self) -> tuple[str, ...]:
        """Patterns of the names of models that it may use; (): every model."""
        return self.spec.models

    @property
    def cache_scope(self) -> str:
        """With which keys it shares cached prompts; "" for the one key of all clients."""
        return self.spec.cache_scope

    def start_request(self, record: RequestRecord, *, counts_as_running: bool) -> None:
        """Counts a request for the limits, until its response is closed as running, and for the usage. Raises
        TooManyRequests."""
        for unit, rate in self._rates.items():
            if wait_s := rate.seconds_until(1):
                self._refuse(f"{counted(rate.limit, unit.removesuffix('s'))} a minute", wait_s)
        if counts_as_running:
            if self._running >= self.spec.max_parallel_requests > 0:
                self._refuse(f"{counted(self.spec.max_parallel_requests, 'request')} at a time", 1.0)
            self._running += 1
            record.releases.append(self._end_running)
        self.count_usage(record)
        if by_request := self._rates.get("requests"):
            by_request.use(1)

    def _refuse(self, limit: str, wait_s: float) -> None:
        self._usages.of(self.name, "").rejections += 1
        text = f"The limit of this API key is reached: {limit}. Please try again in {duration(wait_s)}."
        raise TooManyRequests(text, code="rate_limit_exceeded", retry_after_s=math.ceil(wait_s))

    def _end_running(self) -> None:
        self._running -= 1

    def count_usage(self, record: RequestRecord) -> None:
        """Counts a request for the usage alone, when its response is closed: then its model is known."""

        def count() -> None:
            self._usages.of(self.name, record.model).requests += 1

        record.releases.append(count)

    def generation_finished(self, generation: GenerationRecord, model: str) -> None:
        """Counts the tokens of a generation, whatever is left."""
        self._usages.of(self.name, model).count(generation)
        if rate := self._rates.get("tokens"):
            rate.use(generation.prompt_tokens + generation.completion_tokens)

    def headers(self) -> list[tuple[str, str]]:
        """What is left, as OpenAI writes it (https://platform.openai.com/docs/guides/rate-limits)."""
        headers = []
        for unit, rate in self._rates.items():
            left, full_s = max(0, math.floor(rate.left())), rate.seconds_until(rate.limit)
            values = (("limit", str(rate.limit)), ("remaining", str(left)), ("reset", duration(full_s)))
            headers += [(f"x-ratelimit-{name}-{unit}", value) for name, value in values]
        return headers


def duration(seconds: float) -> str:
    """Returns a time as in OpenAI's headers: 120ms, 7s, 1m30s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


class ApiKeys:
    """The keys of a server and the one check of every request. Without a key all is open. Raises WrongOptions."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._by_name: dict[str, ApiKey] = {}
        self._named = False
        self._reloading = asyncio.Lock()
        self.usages = KeyUsages(config.api_key_usage_file)
        self._file = file_stat(Path(config.api_key_file))
        self._take(read_keys(config))

    @property
    def usage(self) -> list[KeyUsage]:
        """What was used with each named key of the file, by model."""
        return [usage for usage in self.usages.total().sums.values() if usage.name and usage.name in self._by_name]

    def cache_scopes(self, names: Collection[str]) -> list[str]:
        """Returns the scopes in which the prompts of a model are cached: those of the keys that may use one of its
        names."""
        specs = [key.spec for key in self._by_name.values() if INFERENCE in key.spec.roles]
        found = {spec.cache_scope for spec in specs if any(permits(spec.models, name) for name in names)}
        return sorted(found) if self._named else [""]

    def find(self, request: Request) -> ApiKey | None:
        """Returns the key of a request: a bearer token or, as Anthropic's clients send it, x-api-key. All keys are
        compared, so that the time tells nothing. Of what the server sends itself, the key of that client."""
        if not self._by_name:
            return None
        if client := request.on_behalf_of:
            return next((key for key in self._by_name.values() if key.client in ("", client)), None)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        secrets = [bearer] if scheme.lower() == "bearer" else []
        secrets += [request.headers["x-api-key"]] if "x-api-key" in request.headers else []
        if request.websocket:
            secrets += keys_in_subprotocols(request)[:1]
        digests = [hashlib.sha256(secret.strip().encode("latin-1", "replace")).digest() for secret in secrets]
        keys = self._by_name.values()
        matches = [key for digest in digests for key in keys if hmac.compare_digest(digest, key.spec.digest)]
        return matches[0] if matches else None

    def check(self, route: Route, request: Request, key: ApiKey | None, record: RequestRecord) -> None:
        """Raises Unauthorized, Forbidden or TooManyRequests for a request that may not use a route."""
        if not self._requires_key(route):
            return
        if key is None:
            raise Unauthorized("Unauthorized request due to invalid or missing api-key")
        role = role_of(route)
        if role and role not in key.spec.roles:
            text = f"This API key does not have the role {role}, which {safe(request.path)} needs"
            raise Forbidden(text, code="insufficient_permissions")
        if role == INFERENCE and (route.limited or request.websocket):
            key.start_request(record, counts_as_running=not request.websocket)
        elif role == INFERENCE:
            key.count_usage(record)

    def _requires_key(self, route: Route) -> bool:
        if not self._config.has_api_key or route.auth == "open":
            return False
        listing = route.auth == "models" and self._config.protect_models
        return self._named or listing or route.auth in ("key", "admin")

    async def reload(self) -> None:
        """Reads the file again; revoked keys are refused from now on. Raises WrongOptions for a file that is not
        valid, which changes nothing."""
        if not self._config.api_key_file:
            return
        async with self._reloading:  # what was read first must not be taken last
            self._file = await asyncio.to_thread(file_stat, Path(self._config.api_key_file))
            try:
                table = await asyncio.to_thread(read_keys, self._config)
                if self._named and not table.named:
                    raise WrongOptions(f"--api_key_file {self._config.api_key_file}: its keys have no names any more")
                self._take(table)
            except WrongOptions as error:
                logger.error("the API keys stay as they are: %s", error)
                raise

    async def watch(self, period_s: float) -> None:
        """Reads the file again whenever it has changed; runs until cancelled."""
        while self._config.api_key_file:
            await asyncio.sleep(period_s)
            if await asyncio.to_thread(file_stat, Path(self._config.api_key_file)) != self._file:
                try:
                    await self.reload()
                except WrongOptions:
                    continue  # logged by reload

    def _take(self, table: KeyTable) -> None:
        kept, self._by_name = self._by_name, {}
        for spec in table.keys:
            key = self._by_name[spec.name] = kept.get(spec.name) or ApiKey(spec, self._clock, self.usages)
            key.change(spec)
        self._named = table.named
        if table.public:
            file = self._config.api_key_file
            logger.warning("every user of this machine can read --api_key_file %s; chmod o-r changes that", file)
        if table.named:
            logger.info("API keys: %s", ", ".join(self._by_name) or "none, so every request that needs one is refused")


def keys_in_subprotocols(request: Request) -> list[str]:
    """API keys among the subprotocols that a client offers: a browser's WebSocket has no Authorization header."""
    offered = [name.strip() for name in request.headers.get(PROTOCOLS_HEADER, "").split(",")]
    return [name.removeprefix(KEY_SUBPROTOCOL) for name in offered if name.startswith(KEY_SUBPROTOCOL)]
