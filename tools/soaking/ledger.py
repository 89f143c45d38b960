"""The ledger of the soak test: every request, what its client received, the server's access log lines, and all
violations.

An answer may be right, or the beginning of the right one if an engine was killed or the client disconnected, or a
justified refusal. Everything else is a violation.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tools.soaking.cases import Case, Said, streamed, whole
from tools.soaking.client import Manner, Seen

AFTERMATH_S = 45.0
"""Seconds after a kill or a reload in which a model may be unavailable."""
REFUSALS = {429: "refused: queue full", 503: "refused: not available"}


@dataclass
class Entry:
    """One request."""

    number: int
    case: Case
    stream: bool
    model: str
    manner: Manner
    outcome: str = ""
    """How it ended; set once."""
    seen: Seen | None = None
    said_by_server: list[dict[str, Any]] = field(default_factory=list)
    """The access log lines of the request."""

    @property
    def request_id(self) -> str:
        return f"soak-{self.number}"


class Ledger:
    """Judges the outcome of every request. `expected` has the answers of the quiet run by the name of the case."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.expected: dict[str, Said] = {}
        self.disturbances: list[tuple[float, str]] = []
        self.violations: list[str] = []
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.total = 0

    def begin(self, case: Case, stream: bool, model: str, manner: Manner) -> Entry:
        """Adds a request that is about to be sent."""
        self.total += 1
        entry = Entry(self.total, case, stream, model, manner)
        self.entries[entry.request_id] = entry
        return entry

    def disturbed(self, what: str) -> None:
        """Records that an engine is being killed, or models reloaded, now."""
        self.disturbances.append((time.monotonic(), what))

    def violate(self, what: str) -> None:
        """Adds a violation."""
        self.violations.append(what)

    def close(self, entry: Entry, seen: Seen) -> None:
        """Records and judges what the client received."""
        if entry.outcome:
            self.violate(f"{entry.request_id}: two outcomes")
        entry.seen = seen
        entry.outcome = self._judge(entry, seen)
        kind = "stream" if entry.stream else "whole"
        self.outcomes[(f"{entry.case.kind} {kind}", entry.outcome)] += 1
        self._settle(entry)

    def heard(self, line: dict[str, Any]) -> None:
        """Records a line of the server's log."""
        request_id = line.get("request_id", "")
        if request_id.startswith("soak-"):
            entry = self.entries.get(request_id)
            if entry is None:
                self.violate(f"{request_id}: a second access line: {json.dumps(line)}")
                return
            entry.said_by_server.append(line)
            self._settle(entry)
        elif "exception" in line or (line.get("level") == "ERROR" and not self.recent(time.monotonic(), AFTERMATH_S)):
            self.violate(f"the server's log: {json.dumps(line)[:2000]}")

    def finish(self) -> None:
        """Adds a violation for each request that lacks an outcome or an access log line at the end of the run."""
        for entry in self.entries.values():
            missing = "no outcome" if not entry.outcome else "no access line"
            never_sent = entry.seen is not None and not entry.seen.status and entry.manner.leaves_after == 0
            if not never_sent:  # the client may have disconnected before the server had read the request
                self.violate(f"{entry.request_id} ({entry.case.name}, {entry.outcome}): {missing}")

    # --- judging

    def _settle(self, entry: Entry) -> None:
        """Once both sides have reported a request, compares them and removes the entry, so that a second access line is
        noticed."""
        if not (entry.outcome and entry.said_by_server and entry.seen):
            return
        del self.entries[entry.request_id]
        line, seen = entry.said_by_server[0], entry.seen
        if seen.whole and (line["status"], line["bytes"]) != (seen.status, len(seen.body)):
            told = f"{line['status']} with {line['bytes']} bytes"
            self.violate(f"{entry.request_id}: got {seen.status} with {len(seen.body)} bytes, the log says {told}")

    def _judge(self, entry: Entry, seen: Seen) -> str:
        leaves = entry.manner.leaves_after is not None
        if seen.trouble and not (leaves and seen.status == 0):
            return self._wrong(entry, f"after {seen.ended - seen.began:.1f} s: {seen.trouble}")
        if seen.status == 0:
            return "left before the answer"
        try:
            return self._answer(entry, seen) if seen.status == 200 else self._refusal(entry, seen)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            return self._wrong(entry, f"cannot be read: {error!r}: {seen.body[-300:]!r}")

    def _refusal(self, entry: Entry, seen: Seen) -> str:
        if not seen.whole:
            return "left during a refusal" if entry.manner.leaves_after is not None else self._wrong(entry, "cut error")
        error = json.loads(seen.body)["error"]
        if seen.status in REFUSALS and "retry-after" in seen.headers:
            if error["code"] == "model_not_loaded" and any(what == "kill" for _, what in self.disturbances):
                return "refused: killed while loading"  # until the next reload
            if seen.status == 503 and not self.recent(seen.ended, AFTERMATH_S + seen.ended - seen.began):
                return self._wrong(entry, f"503 out of the blue: {error}")
            return REFUSALS[seen.status]
        if seen.status == 404 and error["code"] == "model_not_found" and entry.model != "demo":
            return "refused: model not served"
        return self._wrong(entry, f"status {seen.status}: {error}")

    def _answer(self, entry: Entry, seen: Seen) -> str:
        expected = self.expected[entry.case.name]
        if not entry.stream:
            if not seen.whole:
                return "left during the answer" if entry.manner.leaves_after else self._wrong(entry, "cut answer")
            said = whole(entry.case, seen.body)
            return "answered" if said.choices == expected.choices else self._wrong(entry, f"said {said.choices}")
        said = streamed(entry.case, seen.body)
        if not said.begins(expected):
            return self._wrong(entry, f"is no beginning of the right answer: {said.choices}")
        if not seen.whole:
            return "left during the answer" if entry.manner.leaves_after else self._wrong(entry, "cut stream")
        if not said.done:
            return self._wrong(entry, "a stream without its terminator")
        if said.error is not None:
            return "failed with the engine" if self.killed(seen) else self._wrong(entry, f"failed: {said.error}")
        return "answered" if said.choices == expected.choices else self._wrong(entry, f"ended early: {said.choices}")

    def killed(self, seen: Seen) -> bool:
        """Returns whether an engine was killed while a client waited."""
        return any(seen.began - 1 < when < seen.ended for when, what in self.disturbances if what == "kill")

    def recent(self, now: float, span_s: float) -> bool:
        """Returns whether there was a kill or a reload within `span_s` seconds before `now`."""
        return any(now - span_s < when < now + 1 for when, _ in self.disturbances)

    def _wrong(self, entry: Entry, what: str) -> str:
        form = "stream" if entry.stream else "whole"
        self.violate(f"{entry.request_id} ({entry.case.name}, {form}, {entry.manner.name}, {entry.model}): {what}")
        return "VIOLATION"
