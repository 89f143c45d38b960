"""`lean-ovms version`: what to write into a report of a fault."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from .._version import __version__
from ..server import exit_status
from .command_table import add_json, parser, print_json, table

LIBRARIES = ("openvino", "openvino-genai", "openvino-tokenizers", "tokenizers", "llguidance", "huggingface-hub")


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Prints the versions."""
    given = add_json(parser("version")).parse_args(argv)
    rows = [("lean_ovms", __version__), ("python", platform.python_version()), ("system", platform.platform())]
    rows += [(name, _version(name)) for name in LIBRARIES]
    print_json(dict(rows)) if given.json else print(table(rows))
    return exit_status.OK


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
