"""Features may use the core, but the core does not know them; each can be left out by name without a trace."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pytest

from lean_ovms import features
from lean_ovms.api.router import every
from lean_ovms.composition import compose, manifests
from lean_ovms.manifest import Feature
from tests.conventions.import_rules import DOORS
from tests.conventions.source import ROOT
from tests.conventions.test_layout import imported

FOLDER = ROOT / "features"
ALL = features.NAMES + features.HOSTS
OPTIONAL = [one for one in manifests() if not one.essential]
DEBTS: set[tuple[str, str]] = set()
"""Pairs of a feature and another that it imports but does not name in its needs. Nothing may be added."""


def files(of: Path) -> Iterator[Path]:
    """Yields the modules in a folder."""
    yield from sorted(of.rglob("*.py"))


def feature_of(name: str) -> str:
    """Returns the feature that a module, given by its dotted name, belongs to; "" for the core."""
    parts = name.split(".")
    return parts[2] if parts[:2] == ["lean_ovms", "features"] and len(parts) > 2 else ""


def test_every_folder_is_in_the_list_and_the_manifest_has_its_name() -> None:
    assert {path.name for path in FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__"} == {*ALL}
    assert tuple(one.name for one in manifests(ALL)) == ALL
    for one in manifests(ALL):
        assert set(one.needs) <= {*ALL}
        assert one.summary
        assert one.summary[-1] != "."


def test_the_same_role_has_the_same_file_in_every_feature() -> None:
    """A reader who knows one feature finds the parts of another one."""
    for one in manifests(ALL):
        named = {("content", row.reader) for row in one.contents}
        named |= {("child.install", one.engine.install)} if one.engine else set()
        named |= {("child.task", row.loader) for row in one.tasks} | {("model", row.model) for row in one.tasks}
        assert {role for role, name in named if name.partition(":")[0] != role} == set()
        flags = (FOLDER / one.name / "flags.txt").read_text("utf-8") if one.flags else ""
        found = set(re.findall(r"^    .* = \w+ ([\w.]+):\w+$", flags, re.MULTILINE))
        assert found <= {"flags", "templates"}  # llama.cpp's templates are a table of their own


def test_the_core_imports_no_feature_and_spells_no_name_of_one() -> None:
    named = re.compile(rf"\bfeatures[./]({'|'.join(ALL)})\b(?!\.html)")
    doors = {ROOT / f"{door}.py" for door in DOORS}
    core = [path for path in files(ROOT) if FOLDER not in path.parents and path not in doors]
    assert [path for path in core if any(feature_of(name) for name in imported(path))] == []
    assert [path for path in core if named.search(path.read_text("utf-8"))] == []


def test_a_feature_imports_other_features_only_if_it_needs_them() -> None:
    found = set()
    for one in manifests(ALL):
        may = {"", one.name, *one.needs, *(row.beside for row in one.routes)}
        others = {feature_of(name) for path in files(FOLDER / one.name) for name in imported(path)}
        found |= {(one.name, other) for other in others - may}
    assert found == DEBTS


def test_packages_of_a_feature_are_imported_in_its_folder_only() -> None:
    owners = {package: one.name for one in manifests(ALL) for package in one.packages}
    found = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files(ROOT)
        for name in imported(path)
        if (owner := owners.get(name.split(".")[0])) and FOLDER / owner not in path.parents
    ]
    assert found == []


def test_the_front_end_never_imports_what_is_for_the_engine_process() -> None:
    for one in manifests(ALL):
        child, inside = FOLDER / one.name / "child", f"{one.package}.child."
        front = [path for path in files(FOLDER / one.name) if child not in path.parents]
        assert [path for path in front if any(f"{name}.".startswith(inside) for name in imported(path))] == []


PROGRAM = """
import asyncio, json, os, sys
from lean_ovms.errors import StartError
from lean_ovms.cli.arguments import parse
from lean_ovms.server.run import build
from lean_ovms.types import Request

async def serve(app, names, paths):
    async def status(path):
        return (await app.handle(Request("GET", path.replace("{id}", "1"), "", {}, b"", "test"))).status

    found = {path: await status(path) for path in paths}
    assert set(found.values()) <= {404}, found
    assert await status("/openapi.json") == (404 if "docs_page" in names else 200)
    await app.close()

def check(names, packages, paths, options):
    model = [] if "fake_engine" in options else ["--fake_engine", "--model_name", "m"]  # else the demo model
    without = ["--without", ",".join(names)]
    app = build(parse([*model, *without], {}))
    asyncio.run(serve(app, names, paths))
    unknown = [f"--{option}" for option in options]
    try:
        parse([*(f"{option}=1" for option in unknown), *without], {})
    except StartError as error:
        said = str(error)
        assert "unrecognized arguments" in said, error
        assert [option for option in unknown if f"{option}=1" not in said.split()] == [], error
    else:
        assert not unknown, "these options are still there"
    parts = tuple(f"{package}." for package in packages)
    loaded = {module for module in sys.modules if module.startswith(parts)}
    assert loaded <= {f"{package}.feature" for package in packages}, loaded

for row in json.load(sys.stdin):
    if os.fork() == 0:
        check(*row)
        os._exit(0)
    assert os.wait()[1] == 0, row
"""
"""Checks a server without some features, in a process that starts with only the core: their paths and options are
unknown, and only their manifests are loaded."""


def needed_by_others() -> list[str]:
    """Returns the optional features that others need, and the scripted engine, which answers the chats."""
    names = {one.name for one in OPTIONAL if any(one.name in other.needs for other in OPTIONAL)}
    return sorted(names | {"scripted_engine"})


def left_out() -> Iterator[list[Feature]]:
    """Yields sets of features to leave out, such that for any two independent features some set has only the first.

    For each binary digit of the features' numbers, one set has those with a one, another those with a zero. Features
    that others need are left out in sets of their own, together with all that need them.
    """
    needed = {*needed_by_others()}
    for digit in range(len(OPTIONAL).bit_length()):
        for value in (0, 1):
            kept = {one.name for number, one in enumerate(OPTIONAL) if number >> digit & 1 != value} | needed
            yield [one for one in OPTIONAL if one.name not in kept]
    for name in needed_by_others():
        kept = {one.name for one in compose(name).features}
        yield [one for one in OPTIONAL if one.name not in kept]


def test_each_is_left_out_where_any_other_stays() -> None:
    sets = [{one.name for one in some} for some in left_out()]
    alone = {one.name: compose(one.name).left_out for one in OPTIONAL}
    pairs = [(name, other) for name, gone in alone.items() for other in alone if other not in gone]
    assert [pair for pair in pairs if not any(pair[0] in some and pair[1] not in some for some in sets)] == []


def paths_of(some: Collection[Feature]) -> list[str]:
    """Returns the paths that only servers with some of these features have."""
    without = {row.path for row in every(compose(",".join(one.name for one in some)))}
    return sorted({row.path for row in every()} - without)


@pytest.mark.slow
def test_a_server_can_do_without_any_of_them() -> None:
    rows = []
    for some in left_out():
        options = [row.name for one in some if one.options is not None for row in fields(one.options)]
        rows.append([[one.name for one in some], [one.package for one in some], paths_of(some), options])
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, input=json.dumps(rows), capture_output=True, text=True, cwd=ROOT.parent)
    assert done.returncode == 0, done.stderr


UNUSED = """
import asyncio, sys
from lean_ovms.config import Config
from lean_ovms.server.run import build
app = build(Config(fake_engine=True, model_name="m"))
asyncio.run(app.preload())
print(*(module for module in sys.modules if module.startswith("lean_ovms.features.")))
"""


@pytest.mark.slow
def test_what_is_not_used_is_not_loaded() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", UNUSED], check=True, capture_output=True, text=True, cwd=ROOT.parent
    )
    light = {f"{one.package}{part}" for one in OPTIONAL for part in ("", ".feature")}
    essential = tuple(one.package for one in manifests() if one.essential)
    assert {name for name in printed.stdout.split() if not name.startswith(essential)} <= light


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a copy of the package, from which the tests remove parts; the rest is compiled only once."""
    copied = tmp_path_factory.mktemp("package") / "lean_ovms"
    shutil.copytree(ROOT, copied, ignore=shutil.ignore_patterns("__pycache__", "*.bin", "vendor"))
    return copied


@pytest.mark.slow
def test_the_package_works_without_the_folder_of_any_of_them(package: Path) -> None:
    """Their folders are removed, and their names in the list: all that no other needs, then every one.

    That no feature imports one beside those that it needs is known from the syntax trees.
    """
    needed = needed_by_others()
    for some in ({one.name for one in OPTIONAL if one.name not in needed}, {one.name for one in OPTIONAL}):
        kept = [name for name in features.NAMES if name not in some]
        chats_with(package, {"NAMES": kept, "HOSTS": features.HOSTS})


@pytest.mark.slow
def test_the_package_works_without_what_has_a_server_in_it(package: Path) -> None:
    """The modules with public names of these features are removed too, except the package itself."""
    doors = {f"{door}.py" for door in DOORS - {"__init__"}}
    chats_with(package, {"NAMES": features.NAMES, "HOSTS": ()}, without=doors)


@contextmanager
def moved_out(package: Path, names: Collection[str]) -> Iterator[None]:
    """Moves files and folders out of a package during the block."""
    with tempfile.TemporaryDirectory(dir=package.parent) as away:
        moved = [(package / name, Path(away, name.replace("/", "."))) for name in names]
        for path, other in moved:
            path.rename(other)
        try:
            yield
        finally:
            for path, other in moved:
                other.rename(path)


def chats_with(package: Path, lists: dict[str, Sequence[str]], without: Collection[str] = ()) -> None:
    """Answers a chat, and describes all endpoints if the feature for this is there, with a copy of the package.

    Args:
        package: The folder of the copy.
        lists: The lists of features that replace those of the copy.
        without: Files and folders to move out.
    """
    text = (FOLDER / "__init__.py").read_text("utf-8")
    for title, kept in lists.items():
        names = "".join(f'"{name}", ' for name in kept)
        text, count = re.subn(rf"^{title}([^=]*) = \(.*?\)", rf"{title}\1 = ({names})", text, flags=re.S | re.M)
        assert count == 1
    (package / "features" / "__init__.py").write_text(text, "utf-8")
    for compiled in (package / "features" / "__pycache__").glob("__init__.*"):
        compiled.unlink()  # may belong to another list with the same length, written in the same second
    removed = {*without, *(f"features/{name}" for name in set(ALL).difference(*lists.values()))}
    model = ["--fake_engine"] if "scripted_engine" in lists["NAMES"] else ["--model_path", str(ROOT / "demo_model")]
    with moved_out(package, removed):
        done = subprocess.run([sys.executable, "-c", CHAT, *model], capture_output=True, text=True, cwd=package.parent)
    assert done.returncode == 0, done.stderr
    described = 200 if "docs_page" in lists["NAMES"] else 404
    assert done.stdout == f"200 {described}\n"


CHAT = """
import asyncio, sys
from lean_ovms.cli.arguments import parse
from lean_ovms.composition import compose
from lean_ovms.server.opened import opened
from lean_ovms.types import Request

async def main():
    metrics = ["--metrics_enable"] * ("metrics_enable" in compose().option_owners)
    async with opened(parse([*sys.argv[1:], "--model_name", "m", *metrics], {})) as app:
        body = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}'
        request = Request("POST", "/v1/chat/completions", "", {"content-type": "application/json"}, body, "test")
        response = await app.handle(request)
        described = await app.handle(Request("GET", "/openapi.json", "", {}, b"", "test"))
        print(response.status, described.status)

asyncio.run(main())
"""
"""Answers a chat with the scripted engine or a model, and describes all endpoints."""
