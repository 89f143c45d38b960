"""Imports go one way (README, tour of the house). Lazy and type-only imports count."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import lean_ovms

ROOT = Path(lean_ovms.__file__).parent

LEAVES = {"shapes", "errors", "metrics", "log", "notes"}
ALLOWED: dict[str, set[str]] = {
    "__init__": set(),
    "shapes": set(),
    "errors": set(),
    "notes": set(),
    "metrics": {"shapes", "errors", "notes"},
    "log": {"log_file", "notes", "stderr"},
    "log_file": {"log_lines"},
    "log_lines": set(),
    "stderr": {"log_lines"},
    "lifeline": set(),
    "config": {"errors", "lora"},
    "lora": {"errors"},
    "loras": {"lora", "config", "engine", "errors"},
    "aside": {"errors"},
    "model_dir": {"model_task", "errors"},
    "model_task": set(),
    "demo_model": set(),
    "wire": {"shapes", "errors", "config", "log", "notes"},
    "text": {"shapes", "errors", "log", "model_dir"},
    "engine": {"shapes", "errors", "config", "lifeline", "metrics", "log", "lora"},
    "uses": set(),
    "ovms_flags": set(),
    "supervisor": set(),
    "deployment": {"model", "model_task", "config", *LEAVES},
    "choice": {"text", "engine", "shapes"},
    "generation": {"choice", "engine", *LEAVES},
    "answer": {"generation", "shapes"},
    "forms": {"text", "config", "aside", *LEAVES},
    "dialect": {"forms", "choice", "text", "model_dir", "config", "aside", "shapes", "errors"},
    "model": {"dialect", "generation", "loras", "uses", "text", "engine", "model_dir", "config", "aside", *LEAVES},
    "media": {"shapes", "errors", "config", "lifeline", "log"},
    "api": {"model", "lora", "media", "generation", "answer", "config", "aside", "__version__", *LEAVES},
    "adapters": {"api", "shapes", "errors", "config", "cli", "embed", "log"},
    "hub": {"errors", "log", "model_dir"},
    "repository": {"errors", "log", "config", "model_dir", "deployment"},
}
EVERYTHING = {"serve", "embed", "cli", "commands", "__main__"}

FOREIGN = {
    "h11": {"wire/", "media/"},
    "PIL": {"media/picture.py"},
    "uvloop": {"serve.py"},
    "jinja2": {"text/"},
    "openvino": {"engine/"},
    "openvino_genai": {"engine/"},
    "openvino_tokenizers": {"engine/"},
    "numpy": {"engine/"},
    "starlette": {"adapters/"},
    "ray": {"adapters/"},
    "huggingface_hub": {"hub/"},
    "prometheus_client": {"metrics.py"},
    "google": {"deployment/"},
}
"""Who may import what is not ours."""

CHILD_ONLY = {
    "__main__",
    "adapter",
    "choice",
    "configuration",
    "introduction",
    "pipeline",
    "scheduler",
    "scripted",
    "stateful",
    "vocabulary",
    "worker",
}
"""Modules of the engine child; the front end must not import them (they are heavy), nor they asyncio."""


PURE = {"body", "events", "items", "output", "pages", "shorten", "tables"}
"""Modules of api/responses that are functions of what they are given: no loop, no thread, no model, no app."""


def imported(path: Path) -> Iterator[str]:
    """Every module that `path` imports, as a dotted name."""
    here = ("lean_ovms", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            name = ".".join((*base, *(node.module or "").split("."))).strip(".")
            yield from (f"{name}.{alias.name}" for alias in node.names)


def modules() -> Iterator[tuple[Path, str]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path, path.relative_to(ROOT).with_suffix("").parts[0]


def test_every_room_imports_only_what_it_may() -> None:
    found = []
    for path, mine in modules():
        if mine in EVERYTHING:
            continue
        assert mine in ALLOWED, f"{path.relative_to(ROOT)}: a room without a rule"
        for name in imported(path):
            package, _, rest = name.partition(".")
            other = rest.split(".")[0]
            if package == "lean_ovms" and other and other != mine and other not in ALLOWED[mine]:
                found.append(f"{path.relative_to(ROOT)}: {mine} must not import {other}")
    assert found == []


def test_foreign_packages_stay_where_they_belong() -> None:
    found = []
    for path, _ in modules():
        where = str(path.relative_to(ROOT))
        for name in imported(path):
            places = FOREIGN.get(name.split(".")[0])
            if places is not None and not any(where == p or (p.endswith("/") and where.startswith(p)) for p in places):
                found.append(f"{where} must not import {name}")
    assert found == []


def test_the_front_end_never_imports_the_childs_modules() -> None:
    found = []
    for path, mine in modules():
        inside = mine == "engine" and path.stem in CHILD_ONLY
        for name in imported(path):
            parts = name.split(".")
            if inside and parts[0] == "asyncio":
                found.append(f"{path.name} must not import asyncio")
            if mine != "engine" and parts[:2] == ["lean_ovms", "engine"] and len(parts) > 2 and parts[2] in CHILD_ONLY:
                found.append(f"{path.relative_to(ROOT)} must not import {name}")
    assert found == []


def test_endpoints_never_import_each_other() -> None:
    for path in (ROOT / "api" / "endpoints").glob("*.py"):
        others = {p.stem for p in path.parent.glob("*.py")} - {path.stem, "__init__"}
        for name in imported(path):
            parts = name.split(".")
            assert not ("endpoints" in parts and set(parts) & others), f"{path.name} imports {name}"


def test_the_pure_part_of_responses_stays_pure() -> None:
    found = []
    for path in (ROOT / "api" / "responses").glob("*.py"):
        for name in imported(path) if path.stem in PURE else ():
            parts = name.split(".")
            neighbour = parts[3] if parts[:3] == ["lean_ovms", "api", "responses"] and len(parts) > 3 else ""
            living = {"asyncio", "threading", "model", "generation", "app", "config"} & set(parts[:3])
            if living or (neighbour and neighbour not in PURE):
                found.append(f"{path.name} must not import {name}")
    assert found == []


def test_files_stay_readable() -> None:
    long = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p, _ in modules()}
    assert {name: lines for name, lines in long.items() if lines > 420} == {}
