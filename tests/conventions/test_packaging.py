"""The package is fit for an index: its version has no local part, and the links of its description work."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import lean_ovms
from lean_ovms.cli import completion

ROOT = Path(__file__).parents[2]
SHOW = """
import json, setuptools
setuptools.setup = lambda **given: print(json.dumps({k: v for k, v in given.items() if k != "cmdclass"}))
exec(compile(open("setup.py").read(), "setup.py", "exec"), {"__file__": "setup.py", "__name__": "__main__"})
"""


def metadata(**variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SHOW], cwd=ROOT, env={**os.environ, **variables},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def test_the_version_is_one_that_an_index_takes() -> None:
    assert re.fullmatch(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?", lean_ovms.__version__)


def test_every_file_says_the_same_version() -> None:
    version = lean_ovms.__version__
    assert re.search(
        rf"^## \[{re.escape(version)}\] - (\d{{4}}-\d\d-\d\d|unreleased)$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.slow
def test_a_source_distribution_has_all_of_the_tests_and_what_they_need(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    listed = set((tmp_path / "lean_ovms.egg-info/SOURCES.txt").read_text().split("\n"))
    files = [path for folder in ("bench", "docs", "tests", "tools") for path in (ROOT / folder).rglob("*")]
    named = {str(f.relative_to(ROOT)) for f in files if f.is_file() and "__pycache__" not in f.parts}
    assert "tests/conftest.py" in named
    named |= {path.name for path in ROOT.iterdir() if path.suffix in (".md", ".cff") or path.name == "Dockerfile"}
    assert named <= listed


BUILD = """
import os, sys
_, target, umask = sys.argv
os.umask(int(umask, 8))
from setuptools import build_meta
print(build_meta.build_sdist(target), build_meta.build_wheel(target))
"""


SOME = ("docs_page", "speech", "web_page")
"""Features with files of every kind."""


def built(source: Path, target: Path, umask: str) -> dict[str, bytes]:
    """Builds the source archive and the wheel. Returns their bytes by name."""
    target.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUILD, str(target), umask], cwd=source, capture_output=True, text=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1795441881"}, check=True,
    )  # fmt: skip
    return {name: (target / name).read_bytes() for name in done.stdout.splitlines()[-1].split()}


@pytest.mark.slow
def test_what_is_built_depends_on_the_files_alone(tmp_path: Path) -> None:
    """Times and modes of files and the user have no influence, both in a checkout and in an unpacked source archive."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    no_cache = shutil.ignore_patterns("__pycache__")
    for path in ROOT.iterdir():
        if path.name in TOP - {"lean_ovms", "tests"}:
            shutil.copytree(path, checkout / path.name, ignore=no_cache)
        elif path.is_file() and path.name != ".git":
            shutil.copy(path, checkout / path.name)
    # A few folders stand for all others of the package and of the tests, which are most of the files.
    for folder in ("tests/conventions", "lean_ovms/demo_model", *(f"lean_ovms/features/{name}" for name in SOME)):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=no_cache)
    for folder in ("lean_ovms", "lean_ovms/features"):
        for path in (ROOT / folder).glob("*.*"):
            shutil.copy(path, checkout / folder)
    first = built(checkout, tmp_path / "first", "022")
    source, wheel = first
    assert (source.endswith(".tar.gz"), wheel.endswith(".whl")) == (True, True)
    with tarfile.open(tmp_path / "first" / source) as archive:
        # Python 3.10.11 and 3.11.3 and older, as in Debian 12, have no filters.
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    second = built(tmp_path / source.removesuffix(".tar.gz"), tmp_path / "second", "077")
    assert [name for name in first if first[name] != second[name]] == []


def test_every_name_of_the_command_is_installed() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", "utf-8")
    rows = setup["options.entry_points"]["console_scripts"].split("\n")
    scripts = dict(row.split(" = ") for row in rows if row)
    assert scripts == dict.fromkeys(completion.NAMES, "lean_ovms.cli.main:main")


@pytest.mark.slow
def test_the_description_has_no_link_into_the_source() -> None:
    plain = metadata()
    assert not re.search(r"\]\((?!https?://|#)", plain)
    assert "docs/behaviour.md" in plain
    assert "![" not in plain
    linked = metadata(LEAN_OVMS_SOURCE_URL="https://example.org/o/lean_ovms/blob/v1/")
    assert "[docs/behaviour.md](https://example.org/o/lean_ovms/blob/v1/docs/behaviour.md)" in linked
    assert "(https://example.org/o/lean_ovms/blob/v1/docs/page.png?raw=true)" in linked
    assert '"Source": "https://example.org/o/lean_ovms/blob/v1"' in linked


TOP = {".ci", "bench", "docs", "lean_ovms", "tests", "tools"}
"""The folders at the top of the repository."""
BINARY = {
    "docs": {".png"},
    "lean_ovms/demo_model": {".bin"},
    "lean_ovms/features/pooling/demo_embed": {".bin"},
    "lean_ovms/features/speech/child/silero": {".onnx"},
    "tests/data": {".bin", ".xz", ".zip"},
    "tests/features": {".xz"},
    "tests/fuzz/corpus": {""},
}
"""Folders that may contain files other than text, with the suffixes of these files."""


@pytest.mark.slow
def test_nothing_is_left_over_in_git() -> None:
    """A file of a test was once committed in a folder of its own, and got into the source archive."""
    git = shutil.which("git") or "false"
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no checkout")
    files = [Path(name) for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    assert {file.parts[0] for file in files if len(file.parts) > 1} <= TOP
    assert [
        str(file)
        for file in files
        if b"\0" in (ROOT / file).read_bytes()[:8192]
        and not any(file.is_relative_to(place) and file.suffix in kinds for place, kinds in BINARY.items())
    ] == []


def test_every_folder_of_the_package_is_installed() -> None:
    """`packages = find:` passes over a folder without __init__.py, which a checkout imports all the same."""
    folders = {path.parent for path in (ROOT / "lean_ovms").rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_what_is_installed_has_every_file_that_is_not_python() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", "utf-8")
    named: set[Path] = set()
    for package, patterns in setup["options.package_data"].items():
        folder = ROOT / package.replace(".", "/")
        assert (folder / "__init__.py").is_file(), package
        for pattern in re.split(r",\s*", patterns):
            found = {path for path in folder.glob(pattern) if path.is_file()}
            assert found, (package, pattern)
            named |= found
    files = {path for path in (ROOT / "lean_ovms").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path for path in files if path.suffix not in (".py", ".pyc") and path.name != "README.md"} <= named
