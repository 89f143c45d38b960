"""The commands of the core, and those about all commands: version, help, completions, documentation."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from lean_ovms.cli import completion, features, version
from lean_ovms.cli.arguments import parse, parser
from lean_ovms.cli.commands import commands, described
from lean_ovms.cli.main import run_command

Capture = pytest.CaptureFixture[str]


def run(name: str, *argv: str) -> int:
    return run_command(commands()[name], argv, {})


DISTRIBUTIONS = cache(packages_distributions)


@pytest.fixture(autouse=True)
def distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches the list of installed packages, which takes long and does not change between tests."""
    monkeypatch.setattr(version, "packages_distributions", DISTRIBUTIONS)


@pytest.mark.slow
def test_versions_and_help(capsys: Capture) -> None:
    assert run("version") == 0
    assert re.search(r"^openvino +\d", capsys.readouterr().out, re.MULTILINE)
    for name in commands():
        with pytest.raises(SystemExit) as ended:
            run("help", name)
        assert ended.value.code == 0
        text = capsys.readouterr().out
        assert text.startswith("usage: lean_ovms ")
        if name not in ("help", "serve"):
            assert commands()[name].help[1:] in " ".join(text.split())
    with pytest.raises(SystemExit):
        run("help", "engine")
    assert "--cache_size" in capsys.readouterr().out
    assert run("help", "nothing") == 2


@pytest.mark.parametrize("words", [(), ("-h",), ("--help",)])
def test_help_explains_itself(words: tuple[str, ...], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        run("help", *words)
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: lean_ovms [COMMAND]")


def test_a_program_reads_the_versions(capsys: Capture) -> None:
    assert run("version", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {"openvino", "pypdf"} <= found.keys()  # a package of the core, and one of a feature


def test_versions_of_libraries_that_python_3_10_does_not_list(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "packages_distributions", lambda: {"websockets": ["websockets"]})
    assert run("version", "--json") == 0
    assert "pypdf" in json.loads(capsys.readouterr().out)


def test_missing_packages_of_a_feature_are_named_by_its_extra_or_themselves(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "find_spec", lambda name: None)
    assert run("features") == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["pdf"].endswith(" (needs the extra pdf)")
    assert lines["responses"].endswith(" (some of it needs cryptography, psycopg)")


def test_the_documentation_has_commands_and_flags_that_exist(capsys: Capture) -> None:
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
    lines = re.findall(r"^\$ (?:.*\| )?lean_ovms (.*)$", text, re.MULTILINE)
    assert len(lines) > 5
    for line in lines:
        name, *words = line.split()
        with pytest.raises(SystemExit):
            run(name, "--help") if commands()[name].reader else parse(["--help=all"], {})
        known = capsys.readouterr().out
        for word in words:
            assert (
                not word.startswith("--")
                or word[2:].replace("-", "_") in known
                or word in parser()._option_string_actions
            ), line


def test_the_table_of_commands_is_in_the_help_and_in_completions() -> None:
    for name in commands():
        assert name in described()
        assert all(f" {name}" in completion.script(shell).replace("'", " ") for shell in completion.SHELLS)
