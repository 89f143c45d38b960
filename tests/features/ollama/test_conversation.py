"""Ollama's calls have no ids: each result answers the first call before it of its name that is not answered."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from lean_ovms.features.ollama.api.conversation import to_messages
from lean_ovms.types import Json

MANY = 20_000
SECONDS = 2.0
"""CPU time for MANY calls and results: a tenth of it is needed. Looked up in a list they take 9 s."""


def calls(*names: str) -> Json:
    return {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": {}}} for name in names]}


def result(name: str) -> Json:
    return {"role": "tool", "tool_name": name, "content": "x"}


CALLS = st.lists(st.sampled_from("fg"), min_size=1, max_size=3).map(tuple)
RESULTS = st.sampled_from(["f", "g", "h", ""])


@given(st.lists(CALLS | RESULTS))
def test_a_result_answers_the_first_call_of_its_name(steps: list[tuple[str, ...] | str]) -> None:
    waiting: list[tuple[str, str]] = []
    expected, made = [], 0
    for step in steps:
        if isinstance(step, tuple):
            waiting += [(f"call_{made + place}", name) for place, name in enumerate(step, 1)]
            made += len(step)
        else:
            fitting = [call for call in waiting if call[1] == step] or waiting
            expected.append(fitting[0][0] if fitting else "")
            waiting = [call for call in waiting if call not in fitting[:1]]
    messages = to_messages([calls(*step) if isinstance(step, tuple) else result(step) for step in steps])
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == expected


def test_many_results_of_another_name_take_little_time() -> None:
    messages = [calls(*"f" * MANY), *[result("g")] * MANY]
    start = time.process_time()
    assert to_messages(messages)[-1]["tool_call_id"] == f"call_{MANY}"
    assert time.process_time() - start < SECONDS
