"""Uses XGrammar's C++ library without its Python package, which imports torch and transformers.

Only this module knows the library. Its classes are registered with tvm_ffi (apache-tvm-ffi, the only dependency). Their
names and arguments are tested when they are loaded, so that an incompatible version stops the start instead of failing
requests.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RAW = 0
"""XGrammar's number of the kind of vocabulary whose tokens are plain bytes."""


class NotUsable(Exception):
    """Raised if the library is not installed, or is an incompatible version. The message says which."""


class Core:
    """The classes of the library xgrammar that are used here, with the arguments that they always get."""

    def __init__(self, registered: Any) -> None:
        """Looks up the classes of the library; `registered` returns the one registered under a name."""
        self._vocabulary = registered("TokenizerInfo")
        self._compiler = registered("GrammarCompiler")
        self._compiled = registered("CompiledGrammar")
        self._matcher = registered("GrammarMatcher")
        registered("Grammar")

    def vocabulary(self, pieces: Sequence[bytes], ends: Sequence[int]) -> Any:
        """Creates a vocabulary, in 0.2 s for 150,000 tokens. A token without bytes never matches."""
        return self._vocabulary(list(pieces), RAW, len(pieces), list(ends), False)

    def compiler(self, vocabulary: Any) -> Any:
        """Creates a compiler with one thread and no cache. Compiling may take any time and memory."""
        return self._compiler(vocabulary, 1, False, -1)

    def compiled(self, text: str, vocabulary: Any) -> Any:
        """Returns the compiled grammar that a JSON text describes. Raises RuntimeError."""
        return self._compiled.deserialize_json(text, vocabulary)

    def matcher(self, compiled: Any) -> Any:
        """Creates a matcher in the initial state of a compiled grammar."""
        return self._matcher(compiled, None, False, -1, None)


def fill(matcher: Any, mask: NDArray[np.int32]) -> None:
    """Writes the bit mask [1, vocabulary / 32] of the tokens that are allowed next. It may take any time."""
    if not matcher.fill_next_token_bitmask(mask, 0, False):
        mask.fill(-1)


def accept(matcher: Any, token: int) -> bool:
    """Advances the matcher by a token. Returns False if the token is not allowed."""
    return bool(matcher.accept_token(token, False))


def forced(matcher: Any) -> bytes:
    """Returns the text that must come next. It may take any time."""
    try:
        return str(matcher.find_jump_forward_string()).encode()
    except UnicodeDecodeError:
        return b""  # the text ends within a character


@cache
def load() -> Core:
    """Loads the library (17 MB, 0.25 s, 2026-11), without torch even if it is installed. Raises NotUsable."""
    try:
        tvm_ffi, folders = _import(), getattr(importlib.util.find_spec("xgrammar"), "submodule_search_locations", None)
        if folders is None:
            raise ImportError("No module named 'xgrammar'")
        tvm_ffi.libinfo.load_lib_module("xgrammar", "xgrammar_bindings", extra_lib_paths=[Path(one) for one in folders])

        def registered(name: str) -> Any:
            kind = type(name, (tvm_ffi.Object,), {})
            return tvm_ffi.register_object(f"xgrammar.tvm_ffi_binding.{name}")(kind)

        core = Core(registered)
        _try(core)
    except (ImportError, OSError, RuntimeError, AttributeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[-1]
        raise NotUsable(f"xgrammar cannot be used: {reason}"[:500]) from error
    return core


def _import() -> Any:
    """Imports tvm_ffi without torch, which it would import if installed: seconds and hundreds of MB for nothing."""
    os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")
    known = "torch" in sys.modules
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # an import of it fails, as where it is not installed
    try:
        import tvm_ffi.libinfo

        return tvm_ffi
    finally:
        if not known:
            del sys.modules["torch"]


def _try(core: Core) -> None:
    """Tests all functions of the library that are used, with one grammar. Raises RuntimeError."""
    vocabulary = core.vocabulary((b"", b"a", b"b"), [0])
    tag = '{"type": "structural_tag", "format": {"type": "const_string", "value": "ab"}}'
    compiled = core.compiled(str(core.compiler(vocabulary).compile_structural_tag(tag).serialize_json()), vocabulary)
    matcher, mask = core.matcher(compiled), np.zeros((1, 1), np.int32)
    fill(matcher, mask)
    right = (
        mask[0, 0] & 0b111 == 0b010 and forced(matcher) == b"ab" and accept(matcher, 1) and accept(matcher.fork(), 2)
    )
    if not right or matcher.is_completed() or accept(matcher, 1):
        raise RuntimeError("a test grammar did not match as expected")
