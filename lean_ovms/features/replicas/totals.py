"""The counts of several engines as those of one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import zip_longest

from ...types.engine import EngineStats

SUMMED = (
    *("running", "queued", "steps", "kv_blocks_used", "kv_blocks_total", "preemptions", "recoveries", "state_bytes"),
    *("drafts", "accepted"),
)
"""The fields that are sums over the engines."""


def total(found: Sequence[EngineStats], gauges: Collection[str]) -> EngineStats:
    """Returns the counts of several engines together.

    Args:
        found: The counts of each.
        gauges: The metrics of features that count what the engines share, such as files.
    """
    drafted = [one.drafted for one in found if one.drafted is not None]
    by_position = zip_longest(*(one.accepted_by_position for one in found), fillvalue=0)
    of_features: dict[str, float] = {}
    for one in found:
        for name, value in one.of_features.items():
            before = of_features.get(name, 0)
            of_features[name] = max(before, value) if name in gauges else before + value
    return EngineStats(
        **{name: sum(getattr(one, name) for one in found) for name in SUMMED},
        speculative=any(one.speculative for one in found),
        drafted=sum(drafted) if drafted else None,
        accepted_by_position=list(map(sum, by_position)),
        of_features=of_features,
    )


def ended(last: EngineStats, gauges: Collection[str]) -> EngineStats:
    """Returns what remains of the counts of an engine that has ended: those that only grow."""
    return replace(
        last,
        running=0,
        queued=0,
        kv_blocks_used=0,
        kv_blocks_total=0,
        state_bytes=0,
        of_features={name: value for name, value in last.of_features.items() if name not in gauges},
    )
