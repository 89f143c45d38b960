"""Who leaves the engine so that others can run, and continues later. Pure choices; the schedulers act on them.

Two occasions: the KV cache would overflow with the next step, or a client (or a request) with less than its share waits
while another has more. The second takes only what has run for a while since it was last started, so that everything
that is resumed gets on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import Any, TypeVar

from .sequence import ClientQueue, QueuedSequence, SequenceGroup

S = TypeVar("S", bound=QueuedSequence)
MIN_RUN_STEPS = 16
"""Steps with output that a sequence has before its slot may be given to another client; computing it again costs less,
because most of it is in the prefix cache."""


def over_budget(
    running: Seq[S], clients: Iterable[ClientQueue], blocks_of: Callable[[ClientQueue], int], rank: Callable[[S], Any]
) -> S:
    """Returns the one to preempt as the KV cache is exceeded: of the client with most blocks, that of the least rank.

    running: oldest first; of equal ranks the newest goes. The oldest stays, whose ever it is, so that something always
    gets on.
    """
    movable = list(reversed(running))
    clients = list(clients)
    if len(clients) > 1:
        most = max(clients, key=blocks_of)
        movable = [s for s in movable if s.client is most and s is not running[0]] or movable
    return min(movable, key=rank)


def for_another(
    running: Seq[S], giver: ClientQueue | SequenceGroup, steps: int, *, least_priority: int | None = None
) -> S | None:
    """Returns the one of a client or a request that gives its place to another; None if none can at the moment.

    least_priority: only those of this priority or a less urgent one.
    """
    candidates = [
        s
        for s in reversed(running)
        if giver in (s.group, s.client)
        and (s.has_output and steps - s.output_since >= MIN_RUN_STEPS and not s.beams)
        and (least_priority is None or s.request.priority >= least_priority)
    ]
    if not candidates:
        return None
    return min(candidates, key=lambda s: (-s.request.priority, s.restart_cost, -s.group.running))
