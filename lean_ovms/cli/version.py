"""`lean-ovms version` prints the versions to include in a bug report."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, version

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
    """Returns the package names of the installed libraries that features use."""
    installed = packages_distributions()
    packages = [package for one in manifests() for package in one.packages]
    return [name.replace("_", "-") for package in packages for name in installed.get(package, ())[:1]]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
