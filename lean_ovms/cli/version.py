"""`lean-ovms version` prints the versions to include in a bug report."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec

from .._version import __version__
from ..composition import manifests
from ..errors import ExitStatus
from .commands import add_json, parser, print_json, table

LIBRARIES = ("openvino", "openvino-genai", "openvino-tokenizers", "tokenizers")
"""The libraries that the core uses."""


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Prints the versions."""
    given = add_json(parser("version")).parse_args(argv)
    rows = [("lean_ovms", __version__), ("python", platform.python_version()), ("system", platform.platform())]
    rows += [(name, _version(name)) for name in (*LIBRARIES, *_of_features())]
    print_json(dict(rows)) if given.json else print(table(rows))
    return ExitStatus.OK


def _of_features() -> list[str]:
    """Returns the package names of the installed libraries that features use.

    Python 3.10 lacks libraries without a top_level.txt, most of which have the name of what they contain.
    """
    installed = packages_distributions()
    packages = [package for one in manifests() for package in one.packages if find_spec(package)]
    return [installed.get(package, [package])[0].replace("_", "-") for package in packages]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
