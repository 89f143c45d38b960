"""Each row of tests/threats/README.md has tests that exist, and each such test has a row."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
THREATS = ROOT / "tests/threats/README.md"
ALL_FIELDS = re.findall(r"^\| (T\d\d) \|.*\| ([^|]*) \|$", THREATS.read_text("utf-8"), re.MULTILINE)


def test_every_threat_has_a_row_in_order() -> None:
    assert [name for name, _ in ALL_FIELDS] == [f"T{number:02}" for number in range(1, 42)]


def test_every_row_names_files_with_tests_of_its_id() -> None:
    for name, files in ALL_FIELDS:
        tests = 0
        for file in re.findall(r"`(tests/[\w/]+\.py)`", files):
            text = (ROOT / file).read_text("utf-8")
            found = len(re.findall(rf"^(?:async )?def test_{name.lower()}_", text, re.MULTILINE))
            assert found or not file.startswith("tests/threats/"), f"{file} has no test_{name.lower()}_…"
            tests += found
        assert tests, name


def test_every_test_of_a_threat_is_in_its_row() -> None:
    rows = dict(ALL_FIELDS)
    for path in (ROOT / "tests/threats").glob("test_*.py"):
        for name in set(re.findall(r"^(?:async )?def test_(t\d\d)_", path.read_text("utf-8"), re.MULTILINE)):
            assert path.name in rows[name.upper()], f"{path.name} has tests of {name}"
