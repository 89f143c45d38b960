"""The documentation says what the code says."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

tables = importlib.import_module("tools.tables")


@pytest.mark.parametrize("file", tables.FILES, ids=lambda f: f.name)
def test_generated_tables_are_up_to_date(file: Path) -> None:
    text = file.read_text("utf-8")
    assert tables.rewritten(text) == text, "run: python -m tools.tables"


def test_every_table_is_shown_somewhere() -> None:
    text = "".join(file.read_text("utf-8") for file in tables.FILES)
    for name in tables.TABLES:
        assert f"<!-- {name} -->" in text


def test_files_that_the_documentation_names_exist() -> None:
    for file in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = file.read_text("utf-8")
        for name in re.findall(r"`((?:lean_ovms|tests|bench|tools|docs|\.ci)/[\w./-]+)`", text):
            assert (ROOT / name).exists(), f"{file.name} names {name}"
        for name in re.findall(r"\]\(([\w./-]+)\)", text):
            assert (file.parent / name).exists(), f"{file.name} links {name}"


def test_the_readme_opens_with_two_commands() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.S)
    lines = [line for line in blocks[0].splitlines() if line and not line.startswith("#")]
    assert len(lines) == 2
    assert lines[0].endswith("python -m lean_ovms")
    assert "pytest" in lines[1]
