"""Decides which models are in memory: requests load them, within a limit, and idle ones are unloaded.

Models of one group are loaded and unloaded together; a model without a group is a group of its own. If a group is
needed when there is no room, the group that was idle longest is unloaded. If all are busy, one of them gets no new
requests until its running ones have finished. New requests for it wait, as do those for the needed group, and are
served in turn.

`pump` decides after every event: a request, its end, a load, an unload, a timer. The phases of a model and their rules
are in models/lifecycle.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Iterable
from functools import partial

from ...errors import InternalError, StartError, not_loaded, sleeping
from ...models.lifecycle import LOADING, RETRY_S, UNLOADED, UNLOADING, Residency
from .member import Member, ModelGroup, now, settled, stopping

log = logging.getLogger("lean_ovms.models")

LINGER_S = 0.05
"""A group counts as idle only after this time without a request: one request may use its model several times."""
LACKS_MEMORY = re.compile(r"memory|alloc|CL_OUT_OF|signal 9|killed", re.IGNORECASE)
"""Matches the message of a load that may succeed when there is more memory."""


class ModelCache:
    """Decides which models are in memory."""

    def __init__(self, limit: int = 0, free_bytes: Callable[[], int] | None = None) -> None:
        """Begins without models, of which at most `limit` groups are in memory, besides permanent ones.

        With 0, as many are in memory as fit. `free_bytes` returns the free memory in bytes, or None if it is not a
        limit.
        """
        self._limit = limit
        self._free_bytes = free_bytes
        self._groups: dict[str, ModelGroup] = {}
        # The groups that were in memory when the sleep began; None while awake.
        self._asleep: frozenset[str] | None = None
        self._woken = asyncio.Event()  # set when the sleep that it was created for has ended
        self._keeps = False
        self._stopped = False
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0  # uvloop's handle of a time that has come does not know it

    # --- members

    def add(self, model: Residency, group: str = "", *, permanent: bool = False, idle_timeout_s: float = 0.0) -> None:
        """Adds a model.

        Args:
            model: The model, which may already be loaded.
            group: The name of its group; "" if it has a group of its own.
            permanent: Whether it is never unloaded for another.
            idle_timeout_s: The idle time in seconds after which it is unloaded; 0 if it is never unloaded.
        """
        name = f"group {group}" if group else f"model {model.name}"
        found = self._groups.setdefault(name, ModelGroup(name))
        found.permanent = permanent
        found.idle_timeout_s = max(found.idle_timeout_s if found.members else 0.0, idle_timeout_s)
        model.residence = member = Member(model, self, found)
        found.members.append(member)
        if self._asleep is not None:
            found.close()
        model.in_flight.on_none = lambda: self._used(found)
        if model.loaded:
            self._used(found)  # starts its idle time

    def remove(self, member: Member, group: ModelGroup) -> None:
        """Removes a member that has left its group."""
        group.members.remove(member)
        if not group.members:
            del self._groups[group.name]
        self.pump()

    @property
    def _members(self) -> list[Member]:
        return [one for group in self._groups.values() for one in group.members]

    # --- requests

    def check_awake(self) -> None:
        """Raises Unavailable while the server sleeps or stops."""
        if self._stopped:
            raise stopping()
        if self._asleep is not None:
            raise sleeping()

    def _used(self, group: ModelGroup) -> None:
        """Notes that the last request of a model has ended."""
        if self._stopped:
            return
        group.last_used = now()
        if self._asleep is not None or any(one.waiters for one in self._members):
            self._pump_at(group.last_used + LINGER_S)
        elif (idle_after_s := group.idle_after_s) is not None:
            self._pump_at(group.last_used + max(idle_after_s, LINGER_S))

    # --- operators

    @property
    def asleep(self) -> bool:
        """Whether requests are refused until `wake_up`."""
        return self._asleep is not None

    async def load(self, model: Residency) -> None:
        """Loads a model at the start, whether there is room or not. Its requests wait meanwhile. Raises StartError."""
        [member] = [one for one in self._members if one.model is model]
        if model.phase == UNLOADED:
            self._begin_load(member, logged=False)
        if (task := member.change) is not None:
            await asyncio.wait([task])
            if not task.cancelled() and (failure := task.result()) is not None:
                raise failure

    async def unload(self, group: ModelGroup) -> None:
        """Unloads a group once its running requests have finished. Raises RequestError while the server sleeps."""
        self.check_awake()
        group.leaving = True
        group.close()
        try:
            await self._pump_until(lambda: self._asleep is not None or not group.occupied, [group])
        finally:
            group.leaving = False
            self.pump()  # opens the group again, unless the server sleeps

    async def sleep(self, *, keeps: bool = False, cut: bool = False) -> None:
        """Puts the server to sleep: refuses new requests, waits for running ones, and unloads all models.

        The models stay in memory if `keeps` is set. Running requests are ended with an error at once if `cut` is.
        """
        groups = self._groups.values()
        if self._asleep is None:
            self._asleep = frozenset(group.name for group in groups if group.occupied)
        self._keeps = keeps
        for one in self._members:
            one.answer(sleeping)
        for group in groups:
            group.close()
            if cut:
                self._unload_group(group)
        await self._pump_until(
            lambda: self._asleep is None or not any(g.changing or (g.busy if keeps else g.occupied) for g in groups),
            groups,
        )

    async def _pump_until(self, done: Callable[[], bool], groups: Iterable[ModelGroup]) -> None:
        """Waits until `done` is true, which loads and unloads of the groups may change, or until the cache stops."""
        while True:
            self.pump()
            if self._stopped or done():
                return
            changing = [one for group in groups for one in group.members if one.change is not None]
            await (settled(changing) if changing else asyncio.sleep(LINGER_S))

    async def pause(self, seconds: float) -> None:
        """Waits for a number of seconds, or until the server wakes up, so that a refused request may be sent again."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)

    async def wake_up(self) -> list[str]:
        """Accepts requests again, and loads the models that were in memory. Returns the names of those that failed."""
        before, self._asleep, self._keeps = self._asleep or frozenset(), None, False
        self._woken.set()
        self._woken = asyncio.Event()
        woken = []
        for group in self._groups.values():
            group.closed_since = None
            woken += [one for one in group.members if group.name in before and one.loadable]
        for one in woken:
            self._begin_load(one)
        await settled(woken)
        self.pump()
        return [one.model.name for one in woken if not one.model.loaded]

    async def unload_all(self) -> None:
        """Unloads all models, whose requests must have ended."""
        for group in self._groups.values():
            self._unload_group(group)
        await settled(self._members)

    async def stop(self) -> None:
        """Cancels loads, ends the requests that wait for them with an error, and waits for unloads. Idempotent."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for one in self._members:
            one.answer(stopping)
            if one.change is not None and one.model.phase == LOADING:
                one.change.cancel()
        await settled(self._members)

    # --- what to load and unload

    def pump(self) -> None:
        """Loads and unloads groups as waiting requests and limits demand. It is called after every event."""
        if self._stopped:
            return
        groups = list(self._groups.values())
        if self._asleep is None:
            self._serve_all()  # first, because a group that was just loaded for its requests must not count as idle
            blocked = False
            for group in sorted((one for one in groups if one.wanted), key=lambda one: one.wanted_since or 0.0):
                if not self._has_room(group):
                    blocked = True  # later groups wait too, otherwise the first might wait forever
                    break
                self._load_members(group)
            self._close_only(self._victim() if blocked else None)
            self._serve_all()  # serves groups that are no longer to be unloaded
        for group in groups:
            after_s = self._unload_after(group)
            if after_s is None or group.busy or group.changing:
                continue
            if now() < (until := group.last_used + max(after_s, LINGER_S)):
                self._pump_at(until)
                continue
            if group.closed_since is None and group.occupied:
                names = ", ".join(one.model.name for one in group.loaded)
                log.info("%s: idle for %g s, unloaded", names, after_s)
            self._unload_group(group)

    def _pump_at(self, when: float) -> None:
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer, self._timer_at = asyncio.get_running_loop().call_at(when, self._on_timer), when

    def _on_timer(self) -> None:
        self._timer = None
        self.pump()

    def _serve_all(self) -> None:
        """Lets the waiting requests of groups in memory proceed, and loads the missing models of these groups."""
        for group in list(self._groups.values()):
            if group.closed_since is None:
                for one in group.loaded:
                    if one.waiters:
                        one.answer(True)
                if group.occupied and group.wanted_since is not None:
                    self._load_members(group, wanted=True)

    def _has_room(self, wanted: ModelGroup) -> bool:
        """Returns whether a group may be loaded in addition to those in memory."""
        others = [one for one in self._groups.values() if one.occupied and not one.permanent]
        if wanted.permanent or not others:
            return True
        if self._limit or self._free_bytes is None:
            return not self._limit or len(others) < self._limit
        loading = [one for other in others for one in other.models if one.phase == LOADING]
        return sum(one.memory_bytes for one in [*wanted.models, *loading]) <= self._free_bytes()

    def _victim(self) -> ModelGroup | None:
        """Returns the group to unload for another one: the one that was idle longest, or else that loaded first.

        It returns None while a group is being unloaded, while all are being loaded, or until the group has served its
        requests for some time.
        """
        loaded = [one for one in self._groups.values() if one.occupied and not one.permanent]
        if any(one.unloading for one in loaded):
            return None
        unchanging = [one for one in loaded if not one.changing]
        if idle := [one for one in unchanging if not one.busy]:
            return min(idle, key=lambda one: one.last_used)
        victim = min(unchanging, key=lambda one: (one.closed_since is None, one.loaded_at), default=None)
        # Loading takes at most half of the time, even if requests for several groups alternate.
        if victim is not None and now() < (until := victim.loaded_at + victim.load_s):
            self._pump_at(until)
            return None
        return victim

    def _close_only(self, victim: ModelGroup | None) -> None:
        for group in self._groups.values():
            if group is victim:
                group.close()
            elif not group.leaving and not group.unloading:
                group.closed_since = None

    def _unload_after(self, group: ModelGroup) -> float | None:
        """Returns the idle time in seconds after which a group is currently unloaded, or None if it is not."""
        if group.closed_since is not None:
            return None if self._keeps else LINGER_S
        return group.idle_after_s if group.wanted_since is None else None

    # --- loads and unloads

    def _load_members(self, group: ModelGroup, *, wanted: bool = False) -> None:
        """Loads the models of a group, only the wanted ones if that is set, unless a retired one is still in memory."""
        if any(one.retired and one.phase != UNLOADED for one in group.models):
            return
        for one in group.members:
            waits = bool(one.waiters) if wanted else (one.model.failure is None or now() >= one.retry_at)
            if waits and one.loadable:
                self._begin_load(one)

    def _begin_load(self, member: Member, *, logged: bool = True) -> None:
        member.model.phase, member.change = LOADING, asyncio.create_task(self._load(member, logged=logged))

    def _unload_group(self, group: ModelGroup) -> None:
        for one in group.loaded:
            one.model.phase, one.change = UNLOADING, asyncio.create_task(self._unload(one))

    async def _load(self, member: Member, *, logged: bool) -> StartError | None:
        """Loads a model. Returns its error if that failed, which the waiting requests get as well."""
        began, model, group = now(), member.model, member.group
        try:
            await model.load(partial(self._make_room, member))
        except StartError as error:
            member.retry_at = now() + RETRY_S
            member.answer(partial(not_loaded, error, RETRY_S))
            if logged and not model.retired:
                log.error("%s cannot be served: %s", model.name, error)
            return error
        except Exception:
            log.exception("loading %s failed", model.name)
            member.answer(InternalError)
        else:
            if group is not None:
                group.loaded_at = group.last_used = now()
                group.load_s = group.loaded_at - began
        finally:
            member.change = None
            self.pump()
        return None

    async def _make_room(self, member: Member, error: StartError) -> bool:
        """Unloads idle groups after a model has failed to load. Returns whether another attempt may succeed.

        The load may have failed because memory ran out, for example on a GPU. Groups are unloaded for it only if
        nothing but memory limits their number.
        """
        idle = [one for one in self._groups.values() if one is not member.group and one.idle]
        if self._limit or self._free_bytes is None or not idle or not LACKS_MEMORY.search(str(error)):
            return False
        name = member.model.name
        log.warning("%s could not be loaded; unloading %d idle groups to free memory: %s", name, len(idle), error)
        for group in idle:
            self._unload_group(group)
        await settled(one for group in idle for one in group.members)
        return True

    async def _unload(self, member: Member) -> None:
        try:
            await member.model.unload()
        except Exception:
            log.exception("unloading %s failed", member.model.name)
        finally:
            member.change = None
            self.pump()
