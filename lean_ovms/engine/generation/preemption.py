"""Who leaves the pipeline so that others can run, and continues later. Pure choices; scheduler.Scheduler acts on them.

Two occasions: the KV cache would overflow with the next step, or a client (or a request) with less than its share waits
while another has more. The second takes only what has run for a while since it was last added, so that everything
taken up again gets on, and never what would lose its work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

from .fair_queue import Client, Group, group_of
from .sequence import Sequence

MIN_RUN_STEPS = 16
"""Steps with output that a sequence has before its slot may be given to another client; computing it again costs less,
because most of it is in the prefix cache."""


def over_budget(
    running: Seq[Sequence], clients: Iterable[Client], half_computed: Callable[[Sequence], bool]
) -> Sequence:
    """The one to preempt because the KV cache is exceeded: of the client with most blocks, the newest of the least
    priority.

    Those that would have to restart from their prompt stay if others can go; then those with presence or frequency
    penalties: after a preemption their generated tokens are part of the prompt, which these penalties ignore. The
    oldest stays, whose ever it is, so that something always gets on.
    """
    movable = [s for s in reversed(running) if not s.reserved_blocks]
    clients = list(clients)
    if len(clients) > 1:
        most = max(clients, key=lambda client: client.blocks)
        movable = [s for s in movable if group_of(s).client is most and s is not running[0]] or movable
    return min(movable, key=lambda s: (half_computed(s), -s.request.priority, s.restarts_from_prompt, s.has_penalties))


def for_another(
    running: Seq[Sequence], giver: Client | Group, steps: int, *, least_priority: int | None = None
) -> Sequence | None:
    """The one of a client or a request that gives its place to another; None if none can at the moment.

    least_priority: only those of this priority or a less urgent one.
    """
    candidates = [
        s
        for s in reversed(running)
        if giver in (group_of(s), group_of(s).client)
        and (s.has_output and steps - s.output_since >= MIN_RUN_STEPS and not s.beams)
        and (least_priority is None or s.request.priority >= least_priority)
    ]
    if not candidates:
        return None
    return min(
        candidates,
        key=lambda s: (-s.request.priority, s.restarts_from_prompt, s.has_penalties, -group_of(s).running),
    )
