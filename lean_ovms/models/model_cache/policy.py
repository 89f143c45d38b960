"""Which models are in memory: loaded by their requests, within a limit, and unloaded when they are idle.

Models of one group are loaded and unloaded together; a model without a group is one by itself. A group that is wanted
when there is no room waits until the group that was idle longest is unloaded. If all are at work, one of them gets no
new requests until its running ones have finished. Requests for it wait, as those for the wanted group do, and are
served in turn. Knows no engines, no tasks and no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from ...errors import StartError, Unavailable
from .loader import Loader, settled
from .state import (
    MAX_RETRY_AFTER_S,
    CachedModel,
    Member,
    ModelGroup,
    Waiter,
    arrival,
    choose_victim,
    client,
    has_room,
    sleeping,
    with_retry,
)

log = logging.getLogger("lean_ovms.models")

LINGER_S = 0.05
"""A group counts as idle only after this time without a request: one request may use its model several times."""


class ModelCache:
    """Decides which models are in memory. limit: groups in memory at once, the permanent ones not counted; 0: as many
    as the free memory holds."""

    def __init__(self, limit: int = 0, free_bytes: Callable[[], int] | None = None) -> None:
        """free_bytes: the memory that is free; None: memory does not limit."""
        self._limit = limit
        self._free_bytes = free_bytes
        self._groups: dict[str, ModelGroup] = {}
        self._members: dict[CachedModel, Member] = {}
        self._asleep: frozenset[str] | None = None  # the groups that were in memory when it began
        self._keeps = False
        self._stopped = False
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        by_memory = free_bytes is not None and not limit
        self._loader = Loader(self._groups, self._schedule_idle_check, self._pump, by_memory=by_memory)

    # --- members

    def add(self, model: CachedModel, group: str = "", *, permanent: bool = False, idle_timeout_s: float = 0.0) -> None:
        """Adds a model. group: "" for one of its own. permanent: it is never unloaded for another."""
        name = f"group {group}" if group else f"model {model.name}"
        found = self._groups.setdefault(name, ModelGroup(name))
        found.permanent = permanent
        found.idle_timeout_s = max(found.idle_timeout_s if found.members else 0.0, idle_timeout_s)
        member = Member(model, found)
        found.members.append(member)
        if self._asleep is not None:
            found.closing_since = time.monotonic()
        self._members[model] = member
        model.in_flight.on_none = lambda: self._used(member)

    def retire(self, model: CachedModel) -> None:
        """Stops requests to a model: those that wait for it are sent on. `remove` it when it is out of memory."""
        member = self._members.get(model)
        if member is not None:
            member.retired = True
            member.answer(False)

    def remove(self, model: CachedModel) -> None:
        """Forget a model that has been stopped. Idempotent."""
        member = self._members.get(model)
        if member is None:
            return
        if member.task is not None:
            member.task.add_done_callback(lambda _: self.remove(model))  # its load ends now, with an error
            return
        del self._members[model]
        model.in_flight.on_none = None
        member.group.members.remove(member)
        if not member.group.members:
            del self._groups[member.group.name]
            if member.group.timer is not None:
                member.group.timer.cancel()
        self._pump()

    # --- requests

    async def hold(self, model: CachedModel) -> bool:
        """Count one use of the model in its in_flight, once it is loaded. False: it has been replaced or removed.

        Raises RequestError: too many requests wait, the load failed, the server sleeps or stops.
        """
        member = self._members.get(model)
        if member is None or member.retired:
            return False
        closing_since = member.group.closing_since
        if member.open and (closing_since is None or arrival() <= closing_since):
            model.in_flight.add()
            return True
        self._check(member)
        return await self._wait(member)

    def _check(self, member: Member) -> None:
        if self._stopped:
            raise Unavailable("The server is shutting down.", code="shutting_down")
        if self._asleep is not None:
            raise sleeping()
        now = asyncio.get_running_loop().time()
        if member.failure is not None and now < member.retry_at:
            raise with_retry(member.failure, member.retry_at - now)
        member.check_queue(client())

    async def _wait(self, member: Member) -> bool:
        loop = asyncio.get_running_loop()
        waiter = Waiter(loop.create_future(), arrival(), client())
        self._waiting += 1
        member.waiters.append(waiter)
        limit_s = member.model.config.engine_load_timeout_s
        late = loop.call_later(limit_s, self._give_up, member, waiter)
        try:
            self._pump()
            return await waiter.granted
        except asyncio.CancelledError:
            if waiter in member.waiters:
                member.waiters.remove(waiter)
                self._pump()  # another group may be wanted for it alone
            elif not waiter.granted.cancelled() and waiter.granted.exception() is None and waiter.granted.result():
                member.model.in_flight.remove()
            raise
        finally:
            self._waiting -= 1
            late.cancel()

    def _give_up(self, member: Member, waiter: Waiter) -> None:
        if waiter in member.waiters:
            member.waiters.remove(waiter)
            error = Unavailable("The models in memory are at work, and none could be unloaded.", code="models_busy")
            error.retry_after_s = MAX_RETRY_AFTER_S
            waiter.granted.set_exception(error)
            self._pump()

    # --- operators

    def state(self, model: CachedModel) -> str:
        """Returns "loaded", "loading", "unloading", "sleeping" or "unloaded"."""
        member = self._members.get(model)
        if member is not None and member.task is not None:
            return "unloading" if member.unloading else "loading"
        if self._asleep is not None:
            return "sleeping"
        return "loaded" if model.loaded else "unloaded"

    def waiting(self, model: CachedModel) -> int:
        """Returns the number of requests that wait for the model to be loaded."""
        member = self._members.get(model)
        return len(member.waiters) if member is not None else 0

    @property
    def asleep(self) -> bool:
        """Requests are refused until `wake_up`."""
        return self._asleep is not None

    async def load(self, model: CachedModel) -> None:
        """Load a model now, whether there is room or not: at the start. Raises StartError."""
        member = self._members[model]
        if member.task is None and not model.loaded:
            failures: list[StartError] = []
            self._loader.load(member, failures.append)
            await settled(member.task)
            if failures:
                raise failures[0]

    async def unload(self, model: CachedModel) -> None:
        """Unload a model and its group once their running requests have finished. Raises RequestError: all sleep."""
        member = self._members.get(model)
        if member is None:
            return
        if self._stopped or self._asleep is not None:
            self._check(member)
        group = member.group
        group.leaving = True
        if group.closing_since is None:
            group.closing_since = time.monotonic()
        try:
            while group.occupied and not self._stopped and self._asleep is None:
                self._pump()
                await (settled(*group.tasks) if group.changing else asyncio.sleep(LINGER_S))
        finally:
            group.leaving = False
            if self._asleep is None:
                group.closing_since = None
            self._pump()

    def keep(self, model: CachedModel, seconds: float | None) -> bool:
        """Sets how long the model stays in memory after its running and coming requests. Returns False if it is never
        unloaded.

        None: as configured. Negative: until its memory is needed. The value holds until the next call. Thread-safe.
        """
        member = self._members.get(model)
        if member is None or member.group.permanent:
            return False
        member.group.keep_s = seconds
        return True

    async def sleep(self, *, keeps: bool = False, cut: bool = False) -> None:
        """Refuse new requests, let running ones finish, unload all models. Returns when that is done.

        keeps: the models stay in memory. cut: running requests end with an error.
        """
        if self._asleep is None:
            self._asleep = frozenset(group.name for group in self._groups.values() if group.occupied)
        self._keeps = keeps
        for member in self._members.values():
            member.answer(sleeping)
        now = time.monotonic()
        for group in self._groups.values():
            group.closing_since = now if group.closing_since is None else group.closing_since
        if cut:
            for member in self._members.values():
                if member.open:
                    self._loader.unload(member)
        while True:
            self._pump()
            tasks = [one.task for one in self._members.values() if one.task is not None]
            done = not any(group.busy if keeps else group.occupied for group in self._groups.values())
            if self._asleep is None or self._stopped or (done and not tasks):
                return
            await (settled(*tasks) if tasks else asyncio.sleep(LINGER_S))

    async def wake_up(self) -> list[str]:
        """Serves requests again and loads what was in memory before. Returns the names of models that did not load."""
        before, self._asleep, self._keeps = self._asleep or frozenset(), None, False
        for group in self._groups.values():
            group.closing_since = None
        woken = [
            member
            for name in before
            for member in (self._groups[name].members if name in self._groups else ())
            if member.task is None and not member.model.loaded and not member.retired
        ]
        for member in woken:
            self._loader.load(member)
        await settled(*(member.task for member in woken))
        self._pump()
        return [member.model.name for member in woken if not member.model.loaded]

    async def unload_all(self) -> None:
        """Unload every model: their requests must have ended."""
        for member in self._members.values():
            if member.open:
                self._loader.unload(member)
        await settled(*(member.task for member in self._members.values()))

    async def stop(self) -> None:
        """End loads, and requests that wait for them, with an error. Idempotent."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for group in self._groups.values():
            if group.timer is not None:
                group.timer.cancel()
        for member in self._members.values():
            member.answer(lambda: Unavailable("The server is shutting down.", code="shutting_down"))
        await self._loader.stop()

    # --- what to load and unload

    def _used(self, member: Member) -> None:
        """Notes that the last request of a model has ended."""
        if self._stopped:
            return
        group = member.group
        group.last_used = asyncio.get_running_loop().time()
        if self._waiting or self._asleep is not None:
            self._pump_at(group.last_used + LINGER_S)
        self._schedule_idle_check(group)

    def _pump_at(self, when: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    def _pump(self) -> None:
        """Bring what is in memory nearer to what is wanted; called after every event."""
        if self._stopped:
            return
        if self._asleep is None:
            self._serve_all()  # first: a group that has just been loaded for its requests is not idle
            blocked = False
            wanted = [one for one in self._groups.values() if one.wanted]
            for group in sorted(wanted, key=lambda one: one.wanted_since or 0.0):
                if not has_room(group, self._groups.values(), self._limit, self._free_bytes):
                    blocked = True  # later ones wait, too, or the first would wait for ever
                    break
                self._load_members(group)
            self._close_only(self._victim() if blocked else None)
            self._serve_all()  # those that are not to be unloaded any more
        for group in list(self._groups.values()):
            if group.closing_since is not None and not (self._keeps or group.changing) and self._idle(group):
                for member in group.members:
                    if member.model.loaded:
                        self._loader.unload(member)

    def _serve_all(self) -> None:
        for group in list(self._groups.values()):
            if group.closing_since is None:
                self._serve(group)

    def _serve(self, group: ModelGroup) -> None:
        """Let waiting requests of a group in memory go on, and load those of its models that are not there yet."""
        for member in group.members:
            if member.waiters and member.open:
                member.answer(True)
        if group.occupied and group.wanted_since is not None:
            self._load_members(group, wanted=True)

    def _load_members(self, group: ModelGroup, *, wanted: bool = False) -> None:
        """Loads models of a group; none while a retired one is still in memory. wanted: only those that requests wait
        for."""
        if any(one.retired and (one.model.loaded or one.task is not None) for one in group.members):
            return
        now = asyncio.get_running_loop().time()
        for member in group.members:
            waits = bool(member.waiters) if wanted else (member.failure is None or now >= member.retry_at)
            if waits and not member.retired and member.task is None and not member.model.loaded:
                self._loader.load(member)

    def _victim(self) -> ModelGroup | None:
        """Returns the group to unload for another; None while one is being unloaded, or must be served a little
        longer."""
        victim = choose_victim(self._groups.values())
        if victim is not None and victim.busy:
            # Loads take no more than half of the time, however requests for several groups alternate.
            until = victim.loaded_at + victim.load_s
            if asyncio.get_running_loop().time() < until:
                self._pump_at(until)
                return None
        return victim

    def _close_only(self, victim: ModelGroup | None) -> None:
        for group in self._groups.values():
            if group is not victim:
                if not group.leaving and not any(one.unloading for one in group.members):
                    group.closing_since = None
            elif group.closing_since is None:
                group.closing_since = time.monotonic()

    def _idle(self, group: ModelGroup) -> bool:
        """Returns whether a closing group can be unloaded now; otherwise it is looked at again when it may be."""
        if group.busy:
            return False
        until = group.last_used + LINGER_S
        if asyncio.get_running_loop().time() < until:
            self._pump_at(until)
            return False
        return True

    # --- idle time

    def _schedule_idle_check(self, group: ModelGroup) -> None:
        if group.timer is not None:
            group.timer.cancel()
        if (idle_after_s := group.idle_after_s) is not None and not group.busy:
            loop = asyncio.get_running_loop()
            group.timer = loop.call_at(group.last_used + max(idle_after_s, LINGER_S), self._unload_idle, group)

    def _unload_idle(self, group: ModelGroup) -> None:
        if group.busy or group.changing or group.wanted_since is not None or self._asleep is not None:
            return
        loaded = [member for member in group.members if member.open]
        if loaded:
            names = ", ".join(member.model.name for member in loaded)
            log.info("%s: idle for %g s, unloaded", names, group.idle_after_s or 0.0)
        for member in loaded:
            self._loader.unload(member)
