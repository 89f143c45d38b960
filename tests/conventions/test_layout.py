"""Imports between folders go one way, as import_rules.txt says. Lazy and type-only imports count too."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from lean_ovms.composition import compose
from tests.conventions.import_rules import ALLOWED, EVERYTHING, FOREIGN, rule_of
from tests.conventions.source import ROOT, imports

NO_ASYNCIO = ("engine.generation", "engine.paged", "engine.worker", "engine.protocol", "text")
"""Packages without an event loop: the engine process has one main thread, and `text` is pure functions."""
IN_CHILD = re.compile(r"features\.\w+\.child\.")
"""The packages of features that run in the engine process, which have no event loop either."""


def module_of(path: Path) -> str:
    """Returns the dotted name of a module below lean_ovms; for an __init__.py, that of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


@cache
def imported(path: Path) -> tuple[str, ...]:
    return tuple(imports(path.read_text("utf-8"), ("lean_ovms", *path.relative_to(ROOT).parent.parts)))


def modules() -> list[tuple[Path, str]]:
    return [(path, module_of(path)) for path in sorted(ROOT.rglob("*.py"))]


def refused(module: str, names: Iterable[str]) -> list[str]:
    """Returns the imports of `module` that its rule does not allow."""
    mine = rule_of(module)
    if mine in EVERYTHING:
        return []
    assert mine in ALLOWED, f"{module}: a folder without a rule"
    found = []
    for name in names:
        package, _, rest = name.partition(".")
        if package != "lean_ovms" or not rest:
            continue
        other = rule_of(rest)
        if other != mine and other not in ALLOWED[mine]:
            found.append(f"{module} must not import {rest}")
    return found


def test_every_folder_imports_only_what_it_may() -> None:
    assert [line for path, module in modules() for line in refused(module, imported(path))] == []


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("models.text_model", "from ..engine.paged.engine import PagedPipeline"),
        ("models.text_model", "from ..engine.loading.vocabulary import build"),
        ("models.text_model", "from ..engine.worker import text_model"),
        ("engine.client.engine", "from ..generation import fair_queue"),
        ("engine.task", "from .generation.fair_queue import FairQueue"),
        ("engine.generation.task", "from ..paged.engine import PagedPipeline"),
        ("engine.paged.engine", "from ..worker.text_model import load"),
        ("engine.paged.scheduler", "from ...observability import logging"),
        ("api.stored_objects", "from ..features.admin import server_info"),
        ("transports.http11.server", "from ...api.app import App"),
        ("text.decode.detokenizer", "from ..template import chat_template"),
        ("grammar.call_syntax", "from ..text import parsers"),
    ],
)
def test_the_rules_refuse_what_crosses_a_border(module: str, statement: str) -> None:
    package = ("lean_ovms", *module.split(".")[:-1])
    assert refused(module, imports(statement, package)) != []


def test_no_two_folders_import_each_other() -> None:
    for one, others in ALLOWED.items():
        for other in others & ALLOWED.keys():
            assert one not in ALLOWED[other], f"{one} and {other} import each other"


def import_graph() -> dict[str, set[str]]:
    """Returns the modules that each module imports."""
    known = {module for _, module in modules()}
    graph: dict[str, set[str]] = {}
    for path, module in modules():
        names = [name.removeprefix("lean_ovms.") for name in imported(path) if name.startswith("lean_ovms.")]
        found = {name if name in known else name.rpartition(".")[0] for name in names}  # a module, or a name in it
        graph[module] = (found & known) - {module}
    return graph


def test_no_imports_form_a_circle() -> None:
    graph = import_graph()
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        pytest.fail(f"these import each other: {circle}", pytrace=False)


def test_foreign_packages_stay_where_they_belong() -> None:
    found = []
    for path, _ in modules():
        where = str(path.relative_to(ROOT))
        for name in imported(path):
            places = FOREIGN.get(name.split(".")[0])
            if places is not None and not any(where == p or (p.endswith("/") and where.startswith(p)) for p in places):
                found.append(f"{where} must not import {name}")
    assert found == []


def test_the_engine_child_has_no_event_loop() -> None:
    found = [
        module
        for path, module in modules()
        if f"{module}.".startswith(tuple(f"{name}." for name in NO_ASYNCIO)) or IN_CHILD.match(f"{module}.")
        if "asyncio" in {name.split(".")[0] for name in imported(path)}
    ]
    assert found == []


def test_endpoints_never_import_each_other() -> None:
    names = {route.module for route in compose().routes}
    seen = set()
    for path, module in modules():
        mine = f"lean_ovms.{module}"
        if mine in names:
            seen.add(mine)
            rest = names - {mine}
            others = {name for name in imported(path) if any(f"{name}.".startswith(f"{other}.") for other in rest)}
            assert others == set(), f"{module} imports {others}"
    assert seen == names


LATER = (
    *("numpy", "websockets", "sqlite3", "python_multipart", "prometheus_client", "jinja2", "google.protobuf"),
    *("lean_ovms.api.stored_objects", "lean_ovms.api.generation", "lean_ovms.features.pooling.api"),
    *("lean_ovms.api.schemas", "lean_ovms.features.media_files.audio", "lean_ovms.features.pooling.types"),
    *("lean_ovms.features.pooling.model", "lean_ovms.features.realtime.api"),
    *("lean_ovms.features.speech.model", "lean_ovms.features.voice.model"),
)
"""Modules that a server of a text model has not imported when it starts to listen."""
FOR_CHAT = {"lean_ovms.api.generation", "lean_ovms.api.schemas"}
"""Modules that it imports while the model is loaded."""


@pytest.mark.slow
def test_the_front_end_starts_without_what_few_requests_need() -> None:
    """numpy costs 0.1 s and 15 MB; all endpoints together cost 0.1 s and 5 MB (2026-11)."""
    program = f"""
import asyncio, sys
import lean_ovms.transports.http11.server
from lean_ovms.config import Config
from lean_ovms.server.run import build
app = build(Config(model_path="somewhere", fake_engine=True))
print(*(name for name in {LATER} if name in sys.modules))
asyncio.run(app.preload())
print(*(name for name in {LATER} if name in sys.modules))
"""
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    before, after = printed.split("\n")[:2]
    assert before.split() == []
    assert set(after.split()) == FOR_CHAT


def test_files_stay_readable() -> None:
    long = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path, _ in modules()}
    assert {name: lines for name, lines in long.items() if lines > 600} == {}


def test_the_log_of_a_main_module_is_ours() -> None:
    """The __name__ of such a module is "__main__", and INFO lines of a logger with this name would not be written."""
    for path, _ in modules():
        assert path.name != "__main__.py" or "getLogger(__name__)" not in path.read_text("utf-8"), path
