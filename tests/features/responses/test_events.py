"""The events of a response stream as a pure function: recorded lists for scripts, and rules for every stream.

To record the vectors again after an intended change: python -m tests.features.responses.test_events
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lean_ovms.errors import BadRequest, EngineFailure, RequestError, TooManyRequests
from lean_ovms.features.responses.events import Events
from lean_ovms.features.responses.output_items import JsonDepth, pieces_of
from lean_ovms.features.responses.response import ResponseObject
from lean_ovms.types import Delta, Event, Reasoning, Text, TokenLogprob, ToolCallDelta, ToolCallStart, Usage
from lean_ovms.util import chunked_json
from tests.features.responses.rules import Json, check, parse_frames

VECTORS = Path(__file__).parents[2] / "vectors" / "responses" / "events.json"

ECHO = {"parallel_tool_calls": True, "store": True, "tool_choice": "auto", "tools": [], "metadata": {}}
USAGE = Usage(5, 7, 2)
ERROR = EngineFailure("the engine gave up")

THINK = [Reasoning("Let me"), Reasoning(" see.")]
CALL = [ToolCallStart(0, "call_a", "f"), ToolCallDelta(0, '{"x": '), ToolCallDelta(0, '"}"}')]
OTHER = [ToolCallStart(1, "call_b", "g"), ToolCallDelta(1, "{}")]

SCRIPTS: dict[str, tuple[list[Event], str | RequestError | None]] = {
    "text": ([Text("Hel"), Text("lo")], "stop"),
    "nothing": ([], "stop"),
    "reasoning, text": ([*THINK, Text("Yes")], "stop"),
    "reasoning only": ([*THINK], "stop"),
    "text, two calls": ([Text("I look."), *CALL, *OTHER], "stop"),
    "reasoning, call, text": ([*THINK, *CALL, Text("Done.")], "stop"),
    "call without arguments yet": ([ToolCallStart(0, "call_a", "f")], "stop"),
    "cut before anything": ([], "length"),
    "cut in reasoning": ([*THINK], "length"),
    "cut in text": ([*THINK, Text("Ye")], "length"),
    "cut in a call": ([Text("I look."), *CALL[:2]], "length"),
    "cut after a call": ([*CALL], "length"),
    "stopped in a call": ([*CALL, *OTHER[:1]], "stop"),
    "failure before anything": ([], ERROR),
    "failure in reasoning": ([*THINK], ERROR),
    "failure in text": ([Text("Hel")], ERROR),
    "failure in a call": ([*THINK, *CALL[:2]], ERROR),
    "failure after a call": ([*CALL], ERROR),
    "cancelled in text": ([Text("Hel")], None),
}
"""The events of a generation, one per delta, and its end: a finish reason, an error, or None if it is cancelled."""


def deltas_of(said: list[Event], finish: str | None) -> list[Delta]:
    deltas = [Delta(0, [event], [1]) for event in said]
    return [*deltas, Delta(0, [], [2], finish=finish)] if finish else deltas


def play(said: list[Event], ending: str | RequestError | None, **options: Any) -> tuple[bytes, Events]:
    """Returns the complete stream of a script as bytes."""
    events = Events(ResponseObject(model="m", echo=ECHO), **options)
    frames = events.start()
    for delta in deltas_of(said, ending if isinstance(ending, str) else None):
        frames += events.deltas([delta])
    error = ending if isinstance(ending, RequestError) else None
    events.finalize(USAGE, error, cancelled=ending is None)
    frames += events.end()
    assert len(frames) == events.count
    return b"".join(pieces_of(frames)), events


def named(events: list[Json]) -> list[Json]:
    """Returns the events with ids and times that are the same in every run, and without what repeats the request."""
    text = json.dumps(events, ensure_ascii=False)
    for place, found in enumerate(dict.fromkeys(re.findall(r'"((?:resp|msg|rs|fc)_[0-9a-f]{48})"', text))):
        text = text.replace(found, f"{found.partition('_')[0]}_{place}")
    text = re.sub(r'"(created_at|completed_at)": \d+', r'"\1": 0', text)
    whole: list[Json] = json.loads(text)
    for event in whole:
        for key in ECHO:
            event.get("response", {}).pop(key, None)
    return whole


def recorded() -> dict[str, list[Json]]:
    return json.loads(VECTORS.read_text("utf-8"))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_gives_the_recorded_events_and_the_whole_answer_is_their_fold(name: str) -> None:
    said, ending = SCRIPTS[name]
    data, played = play(said, ending)
    found = parse_frames(data)
    assert named(found) == recorded()[name]
    streamed = found[-1]["response"]
    assert streamed == json.loads(chunked_json.dumps(played.response()))
    events = Events(ResponseObject(model="m", echo=ECHO), silent=True)
    events.deltas(deltas_of(said, ending if isinstance(ending, str) else None))
    error = ending if isinstance(ending, RequestError) else None
    final = json.loads(chunked_json.dumps(events.finalize(USAGE, error, cancelled=ending is None)))
    assert named([{"response": final}]) == named([{"response": streamed}])


PIECES = st.one_of(
    st.builds(Text, st.text(min_size=1)),
    st.builds(Reasoning, st.text(min_size=1)),
    st.lists(st.text(min_size=1), max_size=3),  # a call with these arguments
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(PIECES, max_size=6), min_size=1, max_size=3), st.sampled_from(["stop", "length", None]))
def test_any_stream_of_any_choices_obeys_the_rules(choices: list[list[Any]], ending: str | None) -> None:
    scripts = [deltas_of(_said(pieces), ending) for pieces in choices]
    for index, script in enumerate(scripts):
        for delta in script:
            delta.index = index
    events = Events(ResponseObject(model="m", echo=ECHO))
    frames = events.start()
    for place in range(max(map(len, scripts), default=0)):
        frames += events.deltas([script[place] for script in scripts if place < len(script)])
    events.finalize(USAGE, None if ending else ERROR)
    frames += events.end()
    check(parse_frames(b"".join(frames)))


def _said(pieces: list[Any]) -> list[Event]:
    said: list[Event] = []
    calls = 0
    for piece in pieces:
        if isinstance(piece, list):
            said.append(ToolCallStart(calls, f"call_{calls}", "f"))
            said += [ToolCallDelta(calls, text) for text in piece]
            calls += 1
        else:
            said.append(piece)
    return said


def test_a_call_is_done_as_soon_as_its_arguments_are_whole() -> None:
    events = Events(ResponseObject(model="m", echo=ECHO))
    events.start()
    kinds = [[e["type"] for e in parse_frames(b"".join(events.deltas([d])))] for d in deltas_of([*CALL], None)]
    assert kinds[-1] == [
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]


@pytest.mark.parametrize(
    "arguments", ['{"a": "}\\"{", "b": [{}, "\\\\"]}', ' \n{"a":"]"}', "{}", '{"é\\u00e9": "\\\\\\""}']
)
def test_an_object_is_whole_with_its_last_brace_however_it_is_cut(arguments: str) -> None:
    for cut in range(1, 40):
        balance = JsonDepth()
        pieces = [arguments[i : i + cut] for i in range(0, len(arguments), cut)]
        assert [balance.feed(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True], cut
    assert not any(JsonDepth().feed(other) for other in ("12", '"{}"', "[]", "null", ""))


def test_log_probabilities_go_out_with_their_text_and_all_of_them_with_its_end() -> None:
    tokens = [TokenLogprob(0, c, c.encode(), p) for c, p in (("t", -1.0), ("a", -0.5), ("b", None), ("", -0.1))]
    events = Events(ResponseObject(model="m", echo=ECHO))
    frames = events.start()
    frames += events.deltas([Delta(0, [Reasoning("t")], [1], tokens[:1])])
    frames += events.deltas([Delta(0, [], [1], tokens[1:2])])  # text that is held back
    frames += events.deltas([Delta(0, [Text("ab")], [1], tokens[2:3])])
    frames += events.deltas([Delta(0, [], [1], tokens[3:], finish="stop")])
    events.finalize(USAGE)
    found = parse_frames(b"".join(frames + events.end()))
    final = check(found)
    delta = next(e for e in found if e["type"] == "response.output_text.delta")
    entries = [
        {"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": []},
        {"token": "b", "bytes": [98], "logprob": -9999.0, "top_logprobs": []},
    ]
    assert delta["logprobs"] == entries
    assert final["output"][1]["content"][0]["logprobs"] == entries
    assert next(e for e in found if e["type"] == "response.output_text.done")["logprobs"] == entries


@given(st.sets(st.integers(1, 8)), st.integers(0, 3))
@pytest.mark.slow
def test_log_probabilities_of_a_message_are_those_of_its_text(cuts: set[int], held: int) -> None:
    """However tokens arrive, and however long text is held back, none belong to reasoning, markup or the end."""
    words = ["<think>", "so", "</think>", "\n\n", "Hel", "lo", " wor", "ld", "<|im_end|>"]
    tokens = [TokenLogprob(number, word, word.encode(), -1.0) for number, word in enumerate(words)]
    shown = ["" if word not in ("Hel", "lo", " wor", "ld") else word for word in words]
    events = Events(ResponseObject(model="m", echo=ECHO))
    events.start()
    events.deltas([Delta(0, [Reasoning("so")])])
    late = [""] * held
    for begin, end in itertools.pairwise([0, *sorted(cuts), len(words)]):
        late.append("".join(shown[begin:end]))
        text = late.pop(0)
        events.deltas([Delta(0, [Text(text)] if text else [], [1], tokens[begin:end])])
    events.deltas([Delta(0, [Text(text)] if (text := "".join(late)) else [], finish="stop")])
    final = json.loads(chunked_json.dumps(events.finalize(USAGE)))
    [part] = final["output"][1]["content"]
    assert part["text"] == "Hello world"
    assert "".join(entry["token"] for entry in part["logprobs"]) == "Hello world"


@pytest.mark.slow
def test_large_events_share_the_text_of_their_log_probabilities() -> None:
    """The last events are their beginnings and ends around the same pieces, which are not serialized again."""
    top = [TokenLogprob(n, "word" * 4, b"word" * 4, -1.0) for n in range(20)]
    events = Events(ResponseObject(model="m", echo=ECHO))
    frames = events.start()
    for _ in range(240):
        frames += events.deltas([Delta(0, [Text("a")], [1], [TokenLogprob(0, "a", b"a", -0.5, top)])])
    frames += events.deltas([Delta(0, [], [1], finish="stop")])
    final = json.loads(chunked_json.dumps(events.finalize(USAGE)))
    frames += events.end()
    check(found := parse_frames(b"".join(pieces_of(frames))))
    assert found[-1]["response"] == final
    large = [frame for frame in frames if isinstance(frame, list)]
    assert len(large) == 4, "those that end the text, its part, its item and the response"
    shared = {id(piece) for piece in large[0]}.intersection(*({id(piece) for piece in frame} for frame in large[1:]))
    own = [piece for frame in large for piece in frame if id(piece) not in shared]
    assert len(shared) > 5
    assert sum(map(len, own)) < 4 * 70_000
    assert max(map(len, pieces_of(large))) < 2 * chunked_json.PIECE_BYTES


def test_obfuscated_deltas_have_lengths_that_tell_little() -> None:
    data, _ = play([Text("a"), Text("Hello"), Text("x" * 15)], "stop", obfuscate=True, queued=True)
    check(parse_frames(data))
    deltas = [e for e in parse_frames(data) if e["type"].endswith("delta")]
    assert {len(e["delta"]) + len(e["obfuscation"]) for e in deltas} == {16}


@pytest.mark.parametrize(
    ("error", "code"),
    [(ERROR, "server_error"), (BadRequest("bad"), "invalid_prompt"), (TooManyRequests("later"), "rate_limit_exceeded")],
)
def test_an_error_has_one_of_openais_codes(error: RequestError, code: str) -> None:
    _, events = play([], error)
    assert events.response()["error"] == {"code": code, "message": error.message}


def test_the_response_can_be_looked_at_while_it_grows() -> None:
    events = Events(ResponseObject(model="m", echo=ECHO), queued=True)
    events.start()
    assert events.response()["status"] == "queued"
    events.deltas([Delta(0, [Reasoning("hm"), Text("Hel")], [1])])
    seen = events.response()
    assert seen["status"] == "in_progress"
    assert [item["status"] for item in seen["output"]] == ["completed", "in_progress"]
    assert seen["output"][1]["content"][0]["text"] == "Hel"


if __name__ == "__main__":
    found = {name: named(parse_frames(play(*script)[0])) for name, script in SCRIPTS.items()}
    VECTORS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
