"""When XGrammar matches the grammars of the paged engine: its option, its packages, and a server without it."""

import configparser
import sys
from pathlib import Path

import pytest

from lean_ovms.config import Config
from lean_ovms.engine.loading import settings
from lean_ovms.engine.paged import assemble
from lean_ovms.engine.worker.text_model import choose
from lean_ovms.errors import StartError
from lean_ovms.features.xgrammar.child import library
from lean_ovms.features.xgrammar.child.library import XGrammarLibrary
from tests.features.genai_pipelines.test_choice import config

__all__ = ["config"]
PACKAGES = {True: ("json", "this"), False: ("json", "no_such_module")}


@pytest.mark.parametrize(("installed", "pipeline"), [(True, "PAGED"), (False, "LM_CB")])
def test_auto_takes_the_paged_engine_where_the_packages_are(config, monkeypatch, installed, pipeline):
    monkeypatch.setattr(library, "MODULES", PACKAGES[installed])
    found = choose(config(structured_output_backend="xgrammar"), ("CPU",))
    assert found.pipeline == pipeline
    assert installed or "xgrammar without the package xgrammar" in found.reason


def test_the_packages_are_looked_for_and_not_imported(monkeypatch):
    monkeypatch.setattr(library, "MODULES", PACKAGES[False])
    assert XGrammarLibrary().missing
    monkeypatch.setattr(library, "MODULES", PACKAGES[True])
    assert not XGrammarLibrary().missing
    assert "this" not in sys.modules


def test_the_paged_engine_without_the_packages_says_how_to_install_them(monkeypatch):
    monkeypatch.setattr(library, "MODULES", PACKAGES[False])
    config = Config(pipeline_type="PAGED", structured_output_backend="xgrammar")
    with pytest.raises(StartError, match="the package xgrammar; install it with: pip install --no-deps xgrammar=="):
        assemble.load(config, settings.resolve(Config(), 1 << 30))


def test_without_the_feature_grammars_are_matched_inside_openvino_genai(config):
    found = choose(config(structured_output_backend="xgrammar", without="xgrammar"), ("CPU",))
    assert (found.pipeline, found.reason) == (
        "LM_CB",
        "the paged engine does not support --structured_output_backend xgrammar",
    )


def test_without_the_feature_the_paged_engine_does_not_take_another_library_by_itself():
    config = Config(pipeline_type="PAGED", structured_output_backend="xgrammar", without="xgrammar")
    with pytest.raises(
        StartError, match="PAGED does not support --structured_output_backend xgrammar; --pipeline_type LM_CB does"
    ):
        assemble.load(config, settings.resolve(Config(), 1 << 30))


def test_one_version_is_named_everywhere():
    root = Path(__file__).parents[3]
    command = XGrammarLibrary.install.removeprefix("install it with: ")
    assert f"\n{command}\n" in (root / "lean_ovms/features/xgrammar/README.md").read_text("utf-8")
    setup = configparser.ConfigParser()
    setup.read(root / "setup.cfg", "utf-8")
    assert command.split()[3] in setup["options.extras_require"]["xgrammar"].split()
