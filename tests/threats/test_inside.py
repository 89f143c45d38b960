"""Threats from models and their output, and between the server's own processes (README.md)."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lean_ovms
from lean_ovms.features.model_families.registry import registry
from lean_ovms.types import Event, ToolCallDelta, ToolCallStart
from tests.threats.target import Target

PACKAGE = Path(lean_ovms.__file__).parent
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
VECTORS = Path(__file__).parents[1] / "vectors"
each_family = pytest.mark.parametrize("family", sorted(registry().tool_names))


# --- output of models ------------------------------------------------------------------------------------------------


def imports_and_calls(path: Path) -> set[str]:
    """Returns the names of modules that a file imports, and of functions that it calls by a plain name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Call):
            function = node.func
            found.add(function.id if isinstance(function, ast.Name) else getattr(function, "attr", ""))
    return found


def test_t11_nothing_evaluates_what_a_model_says() -> None:
    for path in (PACKAGE / "text").rglob("*.py"):
        assert not imports_and_calls(path) & {"eval", "exec", "literal_eval", "ast", "__import__"}, path


def parse(family: str, text: str, step: int = 4096) -> list[Event]:
    parser = registry().make(family, None, tools=TOOLS, prompt_tail="")
    events = [event for at in range(0, len(text), step) for event in parser.feed(text[at : at + step])]
    return events + parser.finish()


@each_family
def test_t11_deep_nesting_in_a_call_needs_no_recursion(family: str) -> None:
    case = long_case(family)
    for deep in ("[" * 20_000, '{"a":' * 20_000, "f(a=" * 20_000, "((" * 20_000):  # twenty times Python's own limit
        assert parse(family, case["text"].replace(case["long"], deep, 1))


def long_case(family: str) -> dict[str, Any]:
    cases = json.loads((VECTORS / f"{family}.json").read_text())["cases"]
    found: dict[str, Any] = next(case for case in cases if "long" in case)
    return found


@each_family
def test_t13_choices_share_no_state_and_borders_do_not_matter(family: str) -> None:
    text = long_case(family)["text"]
    whole = told(parse(family, text, len(text)))
    parsers = [registry().make(family, None, tools=TOOLS, prompt_tail="") for _ in range(3)]
    events: list[list[Event]] = [[], [], []]
    for at in range(len(text) + 200):  # the second choice lags by a hundred characters, the third by two hundred
        for behind, (parser, so_far) in enumerate(zip(parsers, events, strict=True)):
            place = at - 100 * behind
            if 0 <= place < len(text):
                so_far += parser.feed(text[place])
    for parser, so_far in zip(parsers, events, strict=True):
        assert told(so_far + parser.finish()) == whole


def told(events: list[Event]) -> tuple[str, list[list[str]]]:
    """Returns all text, and [name, arguments] of each call."""
    calls = [[event.name, ""] for event in events if isinstance(event, ToolCallStart)]
    for event in events:
        if isinstance(event, ToolCallDelta):
            calls[event.index][1] += event.text
    return "".join(e.text for e in events if not isinstance(e, ToolCallStart | ToolCallDelta)), calls


# --- model files -----------------------------------------------------------------------------------------------------

CRAFTED_GGUF = b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60) + struct.pack("<Q", 2**62) + b"x" * 64


@pytest.mark.model
@pytest.mark.parametrize(
    "make_model",
    [
        lambda folder: _written(folder / "x.gguf", CRAFTED_GGUF),
        lambda folder: _broken(folder, "openvino_model.xml", b"<?xml version='1.0'?><net><layers>" + b"<layer>" * 9999),
    ],
    ids=["counts of a GGUF", "a network that is none"],
)
def test_t21_a_crafted_model_stops_the_start_in_one_line(make_model: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lean_ovms", "--rest_port", "0", "--rest_bind_address", "127.0.0.1"]
    run = subprocess.run(
        [*command, "--model_path", str(make_model(tmp_path))], capture_output=True, text=True, timeout=300
    )
    assert run.returncode in (2, 3), run.stderr  # errors that need no engine are found before it listens
    assert run.stderr.count("cannot start") == 1
    assert "Traceback" not in run.stderr


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _broken(folder: Path, name: str, data: bytes) -> Path:
    """Returns the demo model with one file changed."""
    model = folder / "model"
    model.mkdir()
    for path in (PACKAGE / "demo_model").iterdir():
        if path.is_file() and path.name != name:
            (model / path.name).symlink_to(path)
    _written(model / name, data)
    return model


# --- between our processes -------------------------------------------------------------------------------------------


def test_t22_nothing_between_processes_can_carry_code() -> None:
    """ZeroMQ only publishes KV events at addresses that the operator chooses; its pickled objects are not used."""
    for path in PACKAGE.rglob("*.py"):
        if not re.search("pickle|marshal|shelve|dill|zmq|pyobj", path.read_text()):
            continue  # parsing all files would take seconds
        used = imports_and_calls(path)
        found = used & {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "zmq"}
        assert found <= ({"zmq"} if path.match("kv_events/child/publisher.py") else set()), path
        assert not used & {"recv_pyobj", "send_pyobj"}, path


def test_t22_only_the_front_end_listens(target: Target) -> None:
    """The engine inherits its socket, which has no name and no port, so nothing can connect to it."""
    assert len(listening(target.popen.pid)) == 1
    assert listening(target.engine()) == []


def listening(pid: int) -> list[str]:
    """Returns the sockets on which a process listens, TCP and Unix."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the socket was closed meanwhile
            link = os.readlink(f"/proc/{pid}/fd/{name}")
            if link.startswith("socket:["):
                inodes.add(link[8:-1])
    found = []
    for table, state, listens, inode in (("tcp", 3, "0A", 9), ("tcp6", 3, "0A", 9), ("unix", 3, "00010000", 6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[state] == listens and fields[inode] in inodes:
                found.append(line)
    return found
