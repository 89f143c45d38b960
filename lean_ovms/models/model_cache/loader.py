"""Loads and unloads models, each in a task of its own; a failure becomes the error of the requests that wait."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from ...errors import InternalError, StartError, Unavailable
from .state import Member, ModelGroup, with_retry

log = logging.getLogger("lean_ovms.models")

RETRY_S = 10.0
"""Seconds after a failed load in which requests get its error; the next one after it loads again."""
LACKS_MEMORY = re.compile(r"memory|alloc|CL_OUT_OF|signal 9|killed", re.IGNORECASE)
"""Matches the message of a load that may succeed when there is more memory."""


class Loader:
    """Loads and unloads models. Member.task is the load or unload in progress."""

    def __init__(
        self,
        groups: Mapping[str, ModelGroup],
        on_loaded: Callable[[ModelGroup], None],
        on_change: Callable[[], None],
        *,
        by_memory: bool,
    ) -> None:
        """on_loaded: called with the group of a model that has been loaded. on_change: after each load and unload.

        by_memory: a load that fails for want of memory is tried again without the groups that are idle.
        """
        self._groups = groups
        self._on_loaded = on_loaded
        self._on_change = on_change
        self._by_memory = by_memory
        self._tasks: set[asyncio.Task[None]] = set()

    def load(self, member: Member, on_failure: Callable[[StartError], object] | None = None) -> None:
        """Begin to load it. on_failure: called instead of a line in the log."""
        self._start(member, self._load(member, on_failure))

    def unload(self, member: Member) -> None:
        """Begin to unload it."""
        self._start(member, self._unload(member))

    async def stop(self) -> None:
        """End all loads; unloads come to their end."""
        for group in self._groups.values():
            for member in group.members:
                if member.task is not None and not member.unloading:
                    member.task.cancel()
        await settled(*self._tasks)

    def _start(self, member: Member, work: Coroutine[Any, Any, None]) -> None:
        member.task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(member.task)
        member.task.add_done_callback(self._tasks.discard)

    async def _load(self, member: Member, on_failure: Callable[[StartError], object] | None = None) -> None:
        loop = asyncio.get_running_loop()
        began, group = loop.time(), member.group
        try:
            await self._load_or_make_room(member)
        except StartError as error:
            failure = Unavailable(f"The model could not be loaded. {error.reason}", code="model_not_loaded")
            member.failure, member.retry_at = failure, loop.time() + RETRY_S
            member.answer(lambda: with_retry(failure, RETRY_S))
            if on_failure is not None:
                on_failure(error)
            elif not member.retired:
                log.error("%s cannot be served: %s", member.model.name, error)
        except Exception:
            log.exception("loading %s failed", member.model.name)
            member.answer(InternalError)
        else:
            member.failure = None
            group.loaded_at = group.last_used = loop.time()
            group.load_s = group.loaded_at - began
            self._on_loaded(group)
        finally:
            member.task = None
            self._on_change()

    async def _load_or_make_room(self, member: Member) -> None:
        """Loads a model. A load that fails while others are idle in memory may have failed for want of memory, on a GPU
        for example: it is tried again without them."""
        try:
            await member.model.load()
        except StartError as error:
            idle = [one for one in self._groups.values() if one is not member.group and one.idle]
            if not self._by_memory or not idle or not LACKS_MEMORY.search(str(error)):
                raise
            log.warning(
                "%s could not be loaded while %d idle groups are in memory: %s", member.model.name, len(idle), error
            )
            victims = [one for group in idle for one in group.members if one.open]
            for one in victims:
                self.unload(one)
            await settled(*(one.task for one in victims))
            await member.model.load()

    async def _unload(self, member: Member) -> None:
        member.unloading = True
        try:
            await member.model.unload()
        except Exception:
            log.exception("unloading %s failed", member.model.name)
        finally:
            member.task, member.unloading = None, False
            self._on_change()


async def settled(*tasks: asyncio.Task[None] | None) -> None:
    """Returns when all of them have ended, however they did."""
    running = [task for task in tasks if task is not None]
    if running:
        await asyncio.wait(running)
