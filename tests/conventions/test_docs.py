"""The documentation agrees with the code."""

from __future__ import annotations

import configparser
import importlib
import re
from pathlib import Path

import pytest

import lean_ovms
from bench import headline
from lean_ovms.api import router
from lean_ovms.cli.arguments import parser
from lean_ovms.composition import compose
from lean_ovms.config import listed
from lean_ovms.features import NAMES
from lean_ovms.features.docs_page import openapi
from lean_ovms.features.foreign_flags import command_line as foreign_flags

ROOT = Path(__file__).parents[2]

tables = importlib.import_module("tools.tables")


@pytest.mark.parametrize("file", tables.FILES, ids=lambda f: f.name)
def test_generated_tables_are_up_to_date(file: Path) -> None:
    text = file.read_text("utf-8")
    assert tables.rewritten(text) == text, "run: python -m tools.tables"


FEATURES = "lean_ovms/features"
"""The folder with a folder for each feature, which contains its page."""


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / FEATURES).glob("*/*.md")]
"""The pages that users read."""


def test_every_table_is_shown_somewhere() -> None:
    text = "".join(file.read_text("utf-8") for file in tables.FILES)
    for name in tables.TABLES:
        assert f"<!-- {name} -->" in text


def test_files_that_the_documentation_names_exist() -> None:
    for file in PAGES:
        text = file.read_text("utf-8")
        for name in re.findall(r"`((?:lean_ovms|tests|bench|tools|docs|\.ci)/[\w./-]+)`", text):
            assert (ROOT / name).exists(), f"{file.name} names {name}"


def test_files_in_the_pictures_and_tables_of_the_tour_exist() -> None:
    """Names in pictures are relative to lean_ovms; names of folders in the table are relative to their package."""
    text = (ROOT / "docs/tour.md").read_text("utf-8")
    for picture in re.findall(r"^```\n(.*?)^```$", text, re.M | re.S):
        for name in re.findall(r"\b\w+/[\w/]+\.py\b", picture):
            assert (ROOT / "lean_ovms" / name).exists(), name
    for folder, what in re.findall(r"^\| `(\w+)/` \|([^|]*)\|", text, re.M):
        for name in re.findall(r"`(\w+/)`", what):
            assert (ROOT / "lean_ovms" / folder / name).exists(), f"{folder}/{name}"


def test_options_that_the_documentation_names_exist() -> None:
    """Only names with an underscore are checked, because other programs write options with hyphens. --flag_name is a
    placeholder."""
    flags = foreign_flags.known()
    names = {row.name for row in listed()} | {name for alias in flags.aliases for name in alias.names}
    names |= flags.ignored.keys() | flags.refused.keys()
    for file in PAGES:
        named = set(re.findall(r"--(\w+_\w*[a-z0-9])\b", file.read_text("utf-8")))
        assert named - names - {"flag_name"} == set(), file


def anchors(file: Path) -> set[str]:
    """Returns the anchors of the headings as GitHub makes them: lower case, hyphens for spaces, no other
    punctuation."""
    text = re.sub(r"^```.*?^```$", "", file.read_text("utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "folder",
    [".", "docs", "docs/deploy", "bench", "tools", "tests/threats", f"{FEATURES}/pooling/demo_embed", FEATURES],
)
def test_links_lead_to_files_and_headings_that_exist(folder: str) -> None:
    files = sorted((ROOT / folder).glob("*/*.md" if folder == FEATURES else "*.md"))
    assert files
    for file in files:
        text = re.sub(r"`[^`\n]*`", "", file.read_text("utf-8"))
        for name, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
            linked = file.parent / name if name else file
            assert linked.exists(), f"{file.name} links {name}"
            assert not anchor or anchor in anchors(linked), f"{file.name} links {name}#{anchor}"


BY_NAME = re.compile(
    r"""pip3?\s+install\s+(-\S+\s+)*["'`]?lean[-_]ovms   # by its name instead of from its source
    | lean[-_]ovms\s?\[\w+                              # with an extra, as pip takes it
    | pypi\.org/project/lean[-_]ovms""",
    re.IGNORECASE | re.VERBOSE,
)
TEXTS = (".cfg", ".html", ".json", ".md", ".py", ".service", ".toml", ".yaml", ".yml", "Dockerfile")


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    ["lean_ovms", "docs", "bench", "tools", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Dockerfile", "setup.cfg"],
)
def test_nothing_says_to_install_this_package_by_its_name(place: str) -> None:
    """The package is in no index, so anyone could register its name there and publish malware."""
    top = ROOT / place
    files = [f for f in top.rglob("*") if f.name.endswith(TEXTS)] if top.is_dir() else [top]
    assert files
    assert [(str(f), found[0]) for f in files if (found := BY_NAME.search(f.read_text("utf-8")))] == []


def test_every_extra_that_a_text_names_exists() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", "utf-8")
    files = [*PAGES, *(ROOT / "tools").glob("*.md")]
    named = {e for f in files for e in re.findall(r'pip install "\.\[(\w+)\]"', f.read_text("utf-8"))}
    for file in (ROOT / "lean_ovms").rglob("*.py"):
        named |= set(re.findall(r"""install_command\(["'](\w+)["']\)""", file.read_text("utf-8")))
    assert {"audio", "vision", "test"} <= named <= set(setup["options.extras_require"])


def test_the_readme_opens_with_the_demo_and_a_real_model_and_has_one_line_that_tests() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.S)
    demo, pulled, file = blocks[0].splitlines()
    assert demo.endswith("python -m lean_ovms")
    assert "serve OpenVINO/" in pulled
    assert file.endswith(".gguf")
    assert len(re.findall(r"^pip install.*pytest.*$", text, re.M)) == 1  # .ci/run takes it from there
    assert [block for block in blocks if "pytest" in block and block.count("\n") > 1] == []


def test_one_sentence_says_what_this_is() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", "utf-8")
    sentence = f"{setup['metadata']['description']}."
    assert (ROOT / "README.md").read_text("utf-8").splitlines()[2] == sentence
    assert parser().description == sentence == lean_ovms.__doc__
    assert f"abstract: {sentence}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert openapi.document(["m"], key=False, composition=compose())["info"]["description"].startswith(sentence)


def test_the_readme_names_paths_that_are_served() -> None:
    """The README's short table is written by hand, unlike the complete one in docs/endpoints.md."""
    [table] = re.findall(r"^\| to \| path \|.*\n\|---.*\n((?:\|.*\n)+)", (ROOT / "README.md").read_text("utf-8"), re.M)
    named = re.findall(r"`(/[^`]+)`", table)
    assert len(named) > 15
    assert set(named) <= {route.path for route in router.every()}


def test_the_readmes_picture_has_the_figures_of_the_results() -> None:
    made = headline.svg(headline.RESULTS.read_text("utf-8"))
    assert headline.PICTURE.read_text("utf-8") == made, "run: python -m bench.headline"
    described = re.search(r"!\[([^\]]*)\]\(docs/numbers\.svg\)", (ROOT / "README.md").read_text("utf-8"))
    assert described
    figures = re.findall(r"\d[\d,.]*\d", described[1])
    assert len(figures) == len(headline.NAMES)
    shown = {*re.findall(r">([\d,.]+)<", made)} | {f"{float(n):.0f}" for n in re.findall(r">(\d+\.\d+)<", made)}
    assert set(figures) <= shown


def test_every_page_of_the_documentation_is_in_its_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    pages = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"]
    assert [name for name in pages if f"]({name})" not in index] == []
    pages = [page.parent.name for page in (ROOT / FEATURES).glob("*/README.md")]
    assert [name for name in pages if f"](../{FEATURES}/{name}/README.md)" not in index] == []


def test_every_feature_has_its_page() -> None:
    assert [name for name in NAMES if not (ROOT / FEATURES / name / "README.md").is_file()] == []


def test_the_documentation_is_no_longer_than_somebody_reads() -> None:
    """Details belong to a feature's README and a server's /docs, and earlier behaviour to git."""
    files = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/deploy").rglob("*"), ROOT / "bench/RESULTS.md"]
    assert sum(file.stat().st_size for file in files if file.is_file()) <= 300_000
