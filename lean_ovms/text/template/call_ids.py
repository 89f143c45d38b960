"""Ids of calls: every call has one, its result the same, and nine letters and digits where a template asks for them.

Such a short id is derived from the client's, so that it is the same in the next turn; ids that have this form stay.
Knows no templates.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

from ...types import Json

_FITS = re.compile(r"[0-9A-Za-z]{9}", re.ASCII)
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def with_ids(messages: list[Json]) -> list[Json]:
    """Returns the messages, each call with an id that is a text, and each result with that of its call.

    A call without an id gets one of its place, and one without a type is one of a function. A result that names none of
    the calls before it answers the first one of them that no other result names, of its own name if it has one. Where
    there is none, or no call, its id stays.
    """
    found: list[Json] = []
    number = 0
    calls = _Calls([], set())
    for place, message in enumerate(messages):
        given = message.get("tool_calls")
        if isinstance(given, list) and given:
            message = {**message, "tool_calls": [_with_id(call, number + i) for i, call in enumerate(given, 1)]}
            number += len(given)
            named = {_text(result.get("tool_call_id")) for result in _results(messages, place + 1)}
            calls = _Calls([call for call in map(_called, message["tool_calls"]) if call[0]], named)
        elif message.get("role") == "tool":
            message = _answering(message, calls)
        else:
            calls = _Calls([], set())
        found.append(message)
    return found


class _Calls:
    """The calls of one message, each an id and a name. named: the ids that the results behind it name."""

    def __init__(self, calls: list[tuple[str, Any]], named: set[str]) -> None:
        self._ids = {call_id for call_id, _ in calls}
        self._last = calls[-1][0] if calls else ""
        self._waiting: deque[str] = deque()
        self._of_name: defaultdict[str, deque[str]] = defaultdict(deque)
        self._answered = named
        for call_id, name in calls:
            self._waiting.append(call_id)
            self._of_name[_text(name)].append(call_id)

    def answered_by(self, given: str, name: Any) -> str:
        """Returns the id of the call that a result answers, which no longer waits then; its own id if there is none."""
        if not self._ids or given in self._ids:
            return given
        found = (name and self._first(self._of_name[_text(name)])) or self._first(self._waiting) or given or self._last
        self._answered.add(found)
        return found

    def _first(self, waiting: deque[str]) -> str:
        """Returns the first id that no result names, and drops those before it."""
        while waiting and waiting[0] in self._answered:
            waiting.popleft()
        return waiting[0] if waiting else ""


def _with_id(call: Any, number: int) -> Any:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    given = call.get("id")
    return {
        "type": "function",
        **call,
        "id": given if isinstance(given, str) and given else _text(given) or f"call_{number}",
    }


def _answering(result: Json, calls: _Calls) -> Json:
    """Returns a result with the id of the call that it answers."""
    given = calls.answered_by(_text(result.get("tool_call_id")), result.get("name"))
    return {**result, "tool_call_id": given} if given and given != result.get("tool_call_id") else result


def _results(messages: list[Json], place: int) -> Iterator[Json]:
    """Yields the results from a place on that follow each other."""
    while place < len(messages) and messages[place].get("role") == "tool":
        yield messages[place]
        place += 1


def _called(call: Any) -> tuple[str, Any]:
    """Returns the id and the name of a call."""
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return "", None
    return call["id"], call["function"].get("name")


def _text(given: Any) -> str:
    """Returns an id as a text; some servers number their calls."""
    return "" if given is None else str(given)


def with_short_ids(messages: list[Json]) -> list[Json]:
    """Returns messages of with_ids with ids of nine letters and digits, different ones for different ids."""
    taken = {given for given in _given(messages) if _FITS.fullmatch(given)}
    known: dict[str, str] = {}

    def short(given: str) -> str:
        if _FITS.fullmatch(given):
            return given
        if given not in known:
            known[given] = next(one for one in _derived(given) if one not in taken)
            taken.add(known[given])
        return known[given]

    return [_renamed(message, short) for message in messages]


def _given(messages: list[Json]) -> Iterator[str]:
    for message in messages:
        yield _text(message.get("tool_call_id"))
        for call in message.get("tool_calls") or ():
            yield _called(call)[0]


def _renamed(message: Json, rename: Callable[[str], str]) -> Json:
    if calls := message.get("tool_calls"):
        return {**message, "tool_calls": [{**c, "id": rename(c["id"])} if _called(c)[0] else c for c in calls]}
    if message.get("role") == "tool":
        return {**message, "tool_call_id": rename(_text(message.get("tool_call_id")))}
    return message


def _derived(given: str) -> Iterator[str]:
    """Yields short ids of an id, the first one of them for wherever no other id has it."""
    attempt = 0
    while True:
        digest = hashlib.sha256(f"{attempt}:{given}".encode("utf-8", "surrogatepass")).digest()
        yield "".join(_DIGITS[byte % len(_DIGITS)] for byte in digest[:9])
        attempt += 1
