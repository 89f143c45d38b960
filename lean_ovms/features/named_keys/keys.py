"""The keys of a file with their permissions and limits. The same classes serve one key and many."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from ...api.keys import ApiKey, ApiKeys
from ...api.services import Services
from ...config import Config
from ...errors import Forbidden, TooManyRequests, WrongOptions, counted
from ...manifest import Route
from ...models.model import Model
from ...observability.logging import safe
from ...observability.records import GenerationRecord, RequestRecord, Sample, permits
from ...types import Request
from ...types.engine import EngineStats
from ...util.files import file_stat
from .feature import KeyOptions
from .file import ADMIN, INFERENCE, KeySpec, KeyTable, read_keys
from .usage import KeyUsages

logger = logging.getLogger("lean_ovms.keys")

MINUTE_S = 60.0
METRICS = ("requests", "rejections", "prompt_tokens", "generation_tokens")
"""The values that are counted for each key and model, by the names of the metrics."""


class RateLimit:
    """An amount that may be used per minute: full at first, and refilled at a constant rate.

    If an amount is known only afterwards, more may be used than is left. After that nothing may be used until the
    deficit is made up for.
    """

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.limit = limit
        self._clock = clock
        self._left, self._refilled_at = float(limit), clock()

    def left(self) -> float:
        """Returns the amount that may be used now; negative if there is a deficit."""
        now = self._clock()
        gained = (now - self._refilled_at) * self.limit / MINUTE_S
        self._left, self._refilled_at = min(float(self.limit), self._left + gained), now
        return self._left

    def use(self, amount: int) -> None:
        self._left = self.left() - amount

    def seconds_until(self, amount: int) -> float:
        """Returns the seconds until this amount is available."""
        return max(0.0, (amount - self.left()) * MINUTE_S / self.limit)


class NamedKey(ApiKey):
    """A key of the table, with the used part of its limits. It stays the same object when the file changes."""

    def __init__(self, spec: KeySpec, clock: Callable[[], float], usages: KeyUsages) -> None:
        """Creates the key for an entry of the file.

        Args:
            spec: The entry.
            clock: Returns the time in seconds since some moment.
            usages: Counts the usage of keys.
        """
        super().__init__(spec.digest)
        self._clock = clock
        self._usages = usages
        self._running = 0
        self._rates: dict[str, RateLimit] = {}
        self.change(spec)

    def change(self, spec: KeySpec) -> None:
        """Applies a changed entry of the file. A limit that has not changed is not refilled."""
        self._spec = spec
        self.digest, self.name, self.models, self.cache_scope = spec.digest, spec.name, spec.models, spec.cache_scope
        self.client = f"key:{spec.name}" if spec.name else ""
        limits = {"tokens": spec.tpm_limit, "requests": spec.rpm_limit}
        same = {unit: rate for unit, rate in self._rates.items() if rate.limit == limits[unit]}
        new = {unit: RateLimit(limit, self._clock) for unit, limit in limits.items() if limit and unit not in same}
        self._rates = same | new

    @property
    def infers(self) -> bool:
        """Whether the key may use models."""
        return INFERENCE in self._spec.roles

    def admit(self, route: Route, request: Request, record: RequestRecord) -> None:
        """Counts a request for limits and usage. Raises Forbidden if the key lacks the role, and TooManyRequests."""
        role = role_of(route)
        if role and role not in self._spec.roles:
            text = f"This API key does not have the role {role}, which {safe(request.path)} needs"
            raise Forbidden(text, code="insufficient_permissions")
        if role == INFERENCE and (route.limited or request.upgrade):
            self.start_request(record, counts_as_running=not request.upgrade)
        elif role == INFERENCE:
            self.count_usage(record)

    def start_request(self, record: RequestRecord, *, counts_as_running: bool) -> None:
        """Counts a request, which may count as running until its response is closed. Raises TooManyRequests."""
        for unit, rate in self._rates.items():
            if wait_s := rate.seconds_until(1):
                self._refuse(f"{counted(rate.limit, unit.removesuffix('s'))} per minute", wait_s)
        if counts_as_running:
            if self._running >= self._spec.max_parallel_requests > 0:
                self._refuse(f"{counted(self._spec.max_parallel_requests, 'request')} at a time", 1.0)
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
        """Counts a request in the usage, but not towards limits, when its response ends and its model is thus known."""

        def count() -> None:
            self._usages.of(self.name, record.model).requests += 1

        record.releases.append(count)

    def generation_finished(self, generation: GenerationRecord, model: str) -> None:
        """Counts the tokens of a generation, even if that exceeds the limits."""
        self._usages.of(self.name, model).count(generation)
        if rate := self._rates.get("tokens"):
            rate.use(generation.prompt_tokens + generation.completion_tokens)

    def headers(self) -> list[tuple[str, str]]:
        """Returns the remaining limits as OpenAI's headers (https://platform.openai.com/docs/guides/rate-limits)."""
        headers = []
        for unit, rate in self._rates.items():
            left, full_s = max(0, math.floor(rate.left())), rate.seconds_until(rate.limit)
            values = (("limit", str(rate.limit)), ("remaining", str(left)), ("reset", duration(full_s)))
            headers += [(f"x-ratelimit-{name}-{unit}", value) for name, value in values]
        return headers


def duration(seconds: float) -> str:
    """Formats a duration like OpenAI's rate limit headers: 120ms, 7s or 1m30s, rounded up."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


class NamedKeys(ApiKeys):
    """The keys of --api_key_file, or the only key of all clients."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        """Reads the key file, and the file of --api_key_usage_file. Raises WrongOptions."""
        super().__init__(config)
        self._clock = clock
        self._path = config.of(KeyOptions).api_key_file
        self._by_name: dict[str, NamedKey] = {}
        self._named = False
        self._reloading = asyncio.Lock()
        self.usages = KeyUsages(config.of(KeyOptions).api_key_usage_file)
        self._file = file_stat(Path(self._path))
        self._take(read_keys(config))

    @classmethod
    def own_key(cls, config: Config) -> str:
        """Returns the key in a file without names, or else that of the environment. Raises WrongOptions."""
        return read_keys(config).secret or config.api_key

    @property
    def required(self) -> bool:
        """Whether requests need a key, which they do even if the file has no keys."""
        return super().required or bool(self._path)

    def guards(self, route: Route) -> bool:
        """Returns whether a route needs a key: with named keys all routes do, except those that are always open."""
        return super().guards(route) or (self._named and route.auth != "open")

    def cache_scopes(self, names: Collection[str]) -> list[str]:
        """Returns the scopes of the prefix cache for a model with these names: those of the keys that may use it."""
        keys = [key for key in self._by_name.values() if key.infers]
        found = {key.cache_scope for key in keys if any(permits(key.models, name) for name in names)}
        return sorted(found) if self._named else super().cache_scopes(names)

    def samples(self) -> Iterable[Sample]:
        """Yields the usage of each named key in the file, by model."""
        for usage in self.usages.total().sums.values():
            if usage.name and usage.name in self._by_name:
                counts = (usage.requests, usage.rejections, usage.prompt_tokens, usage.completion_tokens)
                for metric, count in zip(METRICS, counts, strict=True):
                    yield f"lean_ovms_api_key_{metric}_total", (usage.name, usage.model), count

    async def reload(self) -> None:
        """Reads the file again, so that revoked keys are refused; the old keys stay if it raises WrongOptions."""
        if not self._path:
            return
        async with self._reloading:  # so that an older version cannot replace a newer one
            self._file = await asyncio.to_thread(file_stat, Path(self._path))
            try:
                table = await asyncio.to_thread(read_keys, self._config)
                if self._named and not table.named:
                    raise WrongOptions(
                        f"--api_key_file {self._path}: its keys must keep their names while the server runs"
                    )
                self._take(table)
            except WrongOptions as error:
                logger.error("the old API keys are kept: %s", error)
                raise

    async def watch(self, period_s: float) -> None:
        """Reads the file again whenever it has changed, which is checked every `period_s`, until it is cancelled."""
        while self._path:
            await asyncio.sleep(period_s)
            if await asyncio.to_thread(file_stat, Path(self._path)) != self._file:
                try:
                    await self.reload()
                except WrongOptions:
                    continue  # the error is logged by reload

    async def close(self) -> None:
        """Saves the usage. Idempotent."""
        await self.usages.close()

    def _take(self, table: KeyTable) -> None:
        kept, self._by_name = self._by_name, {}
        for spec in table.keys:
            key = self._by_name[spec.name] = kept.get(spec.name) or NamedKey(spec, self._clock, self.usages)
            key.change(spec)
        self.keys = self._by_name.values()
        self._named = table.named
        if table.public:
            logger.warning("every user of this machine can read --api_key_file %s; chmod o-r prevents that", self._path)
        if table.named:
            logger.info("API keys: %s", ", ".join(self._by_name) or "none, so every request that needs one is refused")


def role_of(route: Route) -> str:
    """Returns the role that the API key of a request for this route needs; "" for any role."""
    if route.changes or route.auth in ("admin", "metrics"):
        return ADMIN
    return INFERENCE if route.auth == "key" else ""


def samples(services: Services, served: Iterable[tuple[Model, EngineStats | None]]) -> Iterable[Sample]:
    """Returns the usage of each named key; empty if the keys have no names."""
    return services.keys.samples() if isinstance(services.keys, NamedKeys) else ()
