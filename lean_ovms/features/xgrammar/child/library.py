"""XGrammar as a grammar library for the paged engine. Nothing of it is imported before it is loaded."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import replace

from ....config import EngineConfig
from ....errors import StartError
from ....types.engine import Vocabulary
from ...structured_output.child.checker import CheckerSettings, ProcessGrammarChecker
from ...structured_output.child.library import Library, NewLibrary

MODULES = ("xgrammar", "tvm_ffi")
PROCESS = (sys.executable, "-m", f"{__package__}.process")
"""The command of the process that compiles grammars."""


class XGrammarLibrary:
    """Loads XGrammar if its package is installed: a `structured_output.child.library.OtherLibrary`."""

    install = "install it with: pip install --no-deps xgrammar==0.2.8 apache-tvm-ffi==0.1.15.post2 typing-extensions"

    @property
    def missing(self) -> str:
        """The reason why the library cannot be used, as a part of a sentence; "" if it can."""
        found = all(importlib.util.find_spec(module) is not None for module in MODULES)
        return "" if found else "--structured_output_backend xgrammar without the package xgrammar"

    def load(self) -> NewLibrary:
        """Imports the library, and returns the function that creates it for a vocabulary."""
        from . import core

        try:
            core.load()
        except core.NotUsable as error:
            raise StartError(f"--structured_output_backend xgrammar: {error}; {self.install}") from error
        return _new


def _new(config: EngineConfig, words: Vocabulary, width: int, eos: Sequence[int]) -> Library:
    from .matcher import XGrammar

    settings = replace(CheckerSettings.of(config, width, probe_s=1.0), eos=sorted(eos))

    def checker(pieces: Sequence[bytes]) -> ProcessGrammarChecker:
        return ProcessGrammarChecker(replace(settings, pieces=pieces), PROCESS)

    return XGrammar(words.pieces, width, eos, checker, special=words.special)
