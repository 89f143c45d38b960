"""The search for the request at fault after a step that raised an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from lean_ovms.engine.paged.scheduling_rules import MAX_RETRIES, FaultIsolation


@dataclass(eq=False)
class Interrupted:
    """What the search reads of a sequence."""

    has_output: bool = False
    retries: int = 0


NEW, OLD = {"has_output": False}, {"has_output": True}
WORN = {"retries": MAX_RETRIES}


@pytest.mark.parametrize(
    ("interrupted", "at_fault", "suspects"),
    [
        ([NEW], 0, []),
        ([OLD], None, [0]),
        ([NEW, OLD], None, [0]),  # the old one may have reached the point where it fails
        ([NEW | {"retries": 1}, OLD], 0, []),
        ([NEW, NEW, OLD], None, [0, 1]),
        ([OLD, OLD], None, [0, 1]),
        ([NEW | {"retries": MAX_RETRIES - 1}, NEW], None, [0, 1]),
        ([NEW | WORN, NEW], 0, []),
        ([NEW | WORN, NEW | WORN, OLD | WORN], 1, []),
        ([OLD | WORN, OLD], 0, []),
    ],
)
def test_who_ends_after_a_failed_step(interrupted: list[Any], at_fault: int | None, suspects: list[int]) -> None:
    found: Any = FaultIsolation()
    sequences = [Interrupted(**one) for one in interrupted]
    before = [one.retries for one in sequences]
    assert found.pick(sequences) is (None if at_fault is None else sequences[at_fault])
    assert found == {sequences[place] for place in suspects}
    assert [one.retries for one in sequences] == [count + 1 for count in before]


def test_suspects_run_alone_beside_those_with_output_and_resume_last() -> None:
    found: Any = FaultIsolation()
    suspect, other, resumed = Interrupted(), Interrupted(), Interrupted(has_output=True, retries=1)
    new, running = Interrupted(), Interrupted(has_output=True)
    assert found.may_start(new, [Interrupted()]), "nobody is suspected"
    found.update([suspect, other])
    assert found.order([suspect, resumed, other]) == [resumed, suspect, other]
    assert found.may_start(suspect, [running])
    assert not found.may_start(suspect, [Interrupted(retries=1)])
    assert not found.may_start(resumed, [running, other])
    assert found.may_start(resumed, [running])
    assert not found.may_start(new, [running])
