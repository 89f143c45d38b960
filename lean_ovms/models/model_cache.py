"""Which models are in memory: loaded by their requests, within a limit, and unloaded when they are idle.

Models of one group are loaded and unloaded together; a model without a group is one by itself. A group that is wanted
when there is no room waits until the group that was idle longest is unloaded. If all are at work, one of them gets no
new requests until its running ones have finished. Requests for it wait, as those for the wanted group do, and are
served in turn.

`_pump` decides, after every event: a request, its end, a load, an unload, a timer. Knows no engines and no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Iterable
from functools import partial

from ..errors import InternalError, StartError
from ..observability.records import current_client
from .model_group import (
    CachedModel,
    Member,
    ModelGroup,
    Waiter,
    all_busy,
    arrival,
    not_loaded,
    now,
    settled,
    sleeping,
    stopping,
)

log = logging.getLogger("lean_ovms.models")

LINGER_S = 0.05
"""A group counts as idle only after this time without a request: one request may use its model several times."""
RETRY_S = 10.0
"""Seconds after a failed load in which requests get its error; the next one after it loads again."""
LACKS_MEMORY = re.compile(r"memory|alloc|CL_OUT_OF|signal 9|killed", re.IGNORECASE)
"""Matches the message of a load that may succeed when there is more memory."""


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
        self._woken = asyncio.Event()  # it has been woken up since this was made
        self._keeps = False
        self._stopped = False
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None

    # --- members

    def add(self, model: CachedModel, group: str = "", *, permanent: bool = False, idle_timeout_s: float = 0.0) -> None:
        """Adds a model. group: "" for one of its own. permanent: it is never unloaded for another."""
        name = f"group {group}" if group else f"model {model.name}"
        found = self._groups.setdefault(name, ModelGroup(name))
        found.permanent = permanent
        found.idle_timeout_s = max(found.idle_timeout_s if found.members else 0.0, idle_timeout_s)
        member = self._members[model] = Member(model, found)
        found.members.append(member)
        if self._asleep is not None:
            found.close()
        model.in_flight.on_none = lambda: self._used(found)
        if model.loaded:
            self._used(found)  # its idle time begins now

    def retire(self, model: CachedModel) -> None:
        """Stops new requests to a model: those that wait for it are sent on. `remove` it when it is out of memory."""
        member = self._members.get(model)
        if member is not None and not member.retired:
            member.retire()

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
        self._pump()

    # --- requests

    async def hold(self, model: CachedModel) -> bool:
        """Counts one use of the model in its in_flight, once it is loaded. Returns False if it is replaced or removed.

        Raises RequestError: too many requests wait, the load failed, the server sleeps or stops.
        """
        member = self._members.get(model)
        if member is None:
            return False
        if member.admits(arrival()):
            model.in_flight.add()
            return True
        if member.retired:
            return False
        self._check_awake()
        if member.failure is not None and (left_s := member.retry_at - now()) > 0:
            raise not_loaded(member.failure, left_s)
        member.check_queue(current_client())
        return await self._wait(member)

    def _check_awake(self) -> None:
        if self._stopped:
            raise stopping()
        if self._asleep is not None:
            raise sleeping()

    async def _wait(self, member: Member) -> bool:
        loop = asyncio.get_running_loop()
        waiter = Waiter(loop.create_future(), arrival(), current_client())
        self._waiting += 1
        member.waiters.append(waiter)
        late = loop.call_later(member.model.config.engine_load_timeout_s, self._give_up, member, waiter)
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
            if not waiter.granted.done():  # else its task has been cancelled, and has not run since
                waiter.granted.set_exception(all_busy())
            self._pump()

    def _used(self, group: ModelGroup) -> None:
        """Notes that the last request of a model has ended."""
        if self._stopped:
            return
        group.last_used = now()
        if self._waiting or self._asleep is not None:
            self._pump_at(group.last_used + LINGER_S)
        elif (idle_after_s := group.idle_after_s) is not None:
            self._pump_at(group.last_used + max(idle_after_s, LINGER_S))

    # --- operators

    def state(self, model: CachedModel) -> str:
        """Returns "loaded", "loading", "unloading", "sleeping" or "unloaded"."""
        member = self._members.get(model)
        if self._asleep is not None and (member is None or member.task is None):
            return "sleeping"
        return member.state if member is not None else "loaded" if model.loaded else "unloaded"

    def member(self, model: CachedModel) -> Member | None:
        """Returns the member that a model is; None if it was not added, or has been removed."""
        return self._members.get(model)

    @property
    def asleep(self) -> bool:
        """Requests are refused until `wake_up`."""
        return self._asleep is not None

    async def load(self, model: CachedModel) -> None:
        """Load a model now, whether there is room or not: at the start. Requests wait for it. Raises StartError."""
        member = self._members[model]
        if member.state == "unloaded":
            member.task = asyncio.create_task(self._load(member, logged=False))
        if (task := member.task) is not None:
            await asyncio.wait([task])
            if not task.cancelled() and (failure := task.result()) is not None:
                raise failure

    async def unload(self, model: CachedModel) -> None:
        """Unload a model and its group once their running requests have finished. Raises RequestError: all sleep."""
        member = self._members.get(model)
        if member is None:
            return
        self._check_awake()
        group = member.group
        group.leaving = True
        group.close()
        try:
            await self._pump_until(lambda: self._asleep is not None or not group.occupied, [group])
        finally:
            group.leaving = False
            self._pump()  # opens it again, unless all sleep

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
        groups = self._groups.values()
        if self._asleep is None:
            self._asleep = frozenset(group.name for group in groups if group.occupied)
        self._keeps = keeps
        for member in self._members.values():
            member.answer(sleeping)
        for group in groups:
            group.close()
            if cut:
                self._unload_group(group)
        await self._pump_until(
            lambda: self._asleep is None or not any(g.changing or (g.busy if keeps else g.occupied) for g in groups),
            groups,
        )

    async def _pump_until(self, done: Callable[[], bool], groups: Iterable[ModelGroup]) -> None:
        """Returns when done() is true, or the cache stops. groups: whose loads and unloads may change that."""
        while True:
            self._pump()
            if self._stopped or done():
                return
            changing = [one for group in groups for one in group.members if one.task is not None]
            await (settled(changing) if changing else asyncio.sleep(LINGER_S))

    async def pause(self, seconds: float) -> None:
        """Returns after this time, or as soon as the server wakes up: a request that was refused may be sent again."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)

    async def wake_up(self) -> list[str]:
        """Serves requests again and loads what was in memory before. Returns the names of models that did not load."""
        before, self._asleep, self._keeps = self._asleep or frozenset(), None, False
        self._woken.set()
        self._woken = asyncio.Event()
        woken = []
        for group in self._groups.values():
            group.closing_since = None
            woken += [one for one in group.members if group.name in before and one.loadable]
        for member in woken:
            member.task = asyncio.create_task(self._load(member))
        await settled(woken)
        self._pump()
        return [member.model.name for member in woken if not member.model.loaded]

    async def unload_all(self) -> None:
        """Unload every model: their requests must have ended."""
        for group in self._groups.values():
            self._unload_group(group)
        await settled(self._members.values())

    async def stop(self) -> None:
        """End loads, and requests that wait for them, with an error; unloads come to their end. Idempotent."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for member in self._members.values():
            member.answer(stopping)
            if member.task is not None and not member.unloading:
                member.task.cancel()
        await settled(self._members.values())

    # --- what to load and unload

    def _pump(self) -> None:
        """Bring what is in memory nearer to what is wanted; called after every event."""
        if self._stopped:
            return
        groups = list(self._groups.values())
        if self._asleep is None:
            self._serve_all()  # first: a group that has just been loaded for its requests is not idle
            blocked = False
            for group in sorted((one for one in groups if one.wanted), key=lambda one: one.wanted_since or 0.0):
                if not self._has_room(group):
                    blocked = True  # later ones wait, too, or the first would wait for ever
                    break
                self._load_members(group)
            self._close_only(self._victim() if blocked else None)
            self._serve_all()  # those that are not to be unloaded any more
        for group in groups:
            after_s = self._unload_after(group)
            if after_s is None or group.busy or group.changing:
                continue
            if now() < (until := group.last_used + max(after_s, LINGER_S)):
                self._pump_at(until)
                continue
            if group.closing_since is None and group.occupied:
                names = ", ".join(one.model.name for one in group.members if one.open)
                log.info("%s: idle for %g s, unloaded", names, after_s)
            self._unload_group(group)

    def _pump_at(self, when: float) -> None:
        if self._timer is not None and self._timer.when() <= when:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    def _serve_all(self) -> None:
        """Let waiting requests of groups in memory go on, and load those of their models that are not there yet."""
        for group in list(self._groups.values()):
            if group.closing_since is None:
                for member in group.members:
                    if member.waiters and member.open:
                        member.answer(True)
                if group.occupied and group.wanted_since is not None:
                    self._load_members(group, wanted=True)

    def _has_room(self, wanted: ModelGroup) -> bool:
        """Returns whether a group may be loaded in addition to those in memory."""
        others = [one for one in self._groups.values() if one.occupied and not one.permanent]
        if wanted.permanent or not others:
            return True
        if self._limit or self._free_bytes is None:
            return not self._limit or len(others) < self._limit
        loading = [one for other in others for one in other.members if one.state == "loading"]
        return sum(one.model.memory_bytes for one in [*wanted.members, *loading]) <= self._free_bytes()

    def _victim(self) -> ModelGroup | None:
        """Returns the group to unload for another: the one that was idle longest, or else the one that was loaded
        first. None while one is on its way out, all are on their way in, or the one must be served a little longer."""
        loaded = [one for one in self._groups.values() if one.occupied and not one.permanent]
        if any(one.unloading for one in loaded):
            return None
        unchanging = [one for one in loaded if not one.changing]
        if idle := [one for one in unchanging if not one.busy]:
            return min(idle, key=lambda one: one.last_used)
        victim = min(unchanging, key=lambda one: (one.closing_since is None, one.loaded_at), default=None)
        # Loads take no more than half of the time, however requests for several groups alternate.
        if victim is not None and now() < (until := victim.loaded_at + victim.load_s):
            self._pump_at(until)
            return None
        return victim

    def _close_only(self, victim: ModelGroup | None) -> None:
        for group in self._groups.values():
            if group is victim:
                group.close()
            elif not group.leaving and not group.unloading:
                group.closing_since = None

    def _unload_after(self, group: ModelGroup) -> float | None:
        """Returns the idle seconds after which a group is unloaded now; None: it stays."""
        if group.closing_since is not None:
            return None if self._keeps else LINGER_S
        return group.idle_after_s if group.wanted_since is None else None

    # --- loads and unloads

    def _load_members(self, group: ModelGroup, *, wanted: bool = False) -> None:
        """Loads models of a group; none while a retired one is still in memory. wanted: only those that requests wait
        for."""
        if any(one.retired and one.state != "unloaded" for one in group.members):
            return
        for member in group.members:
            waits = bool(member.waiters) if wanted else (member.failure is None or now() >= member.retry_at)
            if waits and member.loadable:
                member.task = asyncio.create_task(self._load(member))

    def _unload_group(self, group: ModelGroup) -> None:
        for member in group.members:
            if member.open:
                member.unloading, member.task = True, asyncio.create_task(self._unload(member))

    async def _load(self, member: Member, *, logged: bool = True) -> StartError | None:
        """Loads a model; a failure becomes the error of the requests that wait, and is returned."""
        began, group = now(), member.group
        try:
            await self._load_or_make_room(member)
        except StartError as error:
            member.failure, member.retry_at = error, now() + RETRY_S
            member.answer(partial(not_loaded, error, RETRY_S))
            if logged and not member.retired:
                log.error("%s cannot be served: %s", member.model.name, error)
            return error
        except Exception:
            log.exception("loading %s failed", member.model.name)
            member.answer(InternalError)
        else:
            member.failure = None
            group.loaded_at = group.last_used = now()
            group.load_s = group.loaded_at - began
        finally:
            member.task = None
            self._pump()
        return None

    async def _load_or_make_room(self, member: Member) -> None:
        """Loads a model. A load that fails while others are idle in memory may have failed for want of memory, on a GPU
        for example: where only the memory limits their number, it is tried again without them."""
        name = member.model.name
        try:
            await member.model.load()
        except StartError as error:
            idle = [one for one in self._groups.values() if one is not member.group and one.idle]
            if self._limit or self._free_bytes is None or not idle or not LACKS_MEMORY.search(str(error)):
                raise
            log.warning("%s could not be loaded while %d idle groups are in memory: %s", name, len(idle), error)
            for group in idle:
                self._unload_group(group)
            await settled(one for group in idle for one in group.members)
            await member.model.load()

    async def _unload(self, member: Member) -> None:
        try:
            await member.model.unload()
        except Exception:
            log.exception("unloading %s failed", member.model.name)
        finally:
            member.task, member.unloading = None, False
            self._pump()
