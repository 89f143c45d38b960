"""argv and environment to a Config. Flags, defaults and help all come from the rows in config.py.

Precedence: flag, then environment (LEAN_OVMS_NAME), then default. `--flag-name` and `--flag_name` are the same.
Imports nothing heavy, so --help answers at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from typing import Any, NoReturn

from . import __version__
from .config import Config
from .errors import StartError

PREFIX = "LEAN_OVMS_"


def main() -> NoReturn:
    """The console command. Exit status: 0 stopped, 2 wrong options, 3 never served."""
    try:
        config = parse(sys.argv[1:], os.environ)
    except StartError as error:
        print(f"lean_ovms: {error}", file=sys.stderr)
        sys.exit(2)
    from .serve import run  # --help and --version must not wait for uvloop

    sys.exit(run(config))


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """The Config of a command line. Raises StartError naming the option at fault; --help and --version exit."""
    given = vars(parser().parse_args([_underscored(a) for a in argv]))
    values: dict[str, Any] = {}
    for row in fields(Config):
        text = given.get(row.name)
        if text is None:
            text = _from_environment(row, environ)
        if text is not None:
            values[row.name] = _convert(row, text)
    return Config(**values)


def parser() -> argparse.ArgumentParser:
    """The argument parser, one group per group of rows."""
    result = _Parser(
        prog="lean_ovms",
        description="OpenVINO Model Server's and vLLM's generative REST APIs, on openvino-genai.",
        epilog=f"Each option may also be set by the environment variable {PREFIX}NAME.",
        allow_abbrev=False,
    )
    result.add_argument("--version", action="version", version=f"lean_ovms {__version__}")
    groups: dict[str, Any] = {}
    for row in fields(Config):
        if row.metadata["secret"]:
            continue
        name = row.metadata["group"]
        group = groups.get(name) or groups.setdefault(name, result.add_argument_group(name))
        # A bare boolean flag means true, as OVMS has it; an explicit value may follow.
        extra: dict[str, Any] = {"nargs": "?", "const": "true"} if isinstance(row.default, bool) else {}
        group.add_argument(f"--{row.name}", metavar=_metavar(row), help=_help(row), default=None, **extra)
    return result


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise StartError(f"{message} (--help lists the options)")


def _underscored(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value


def _metavar(row: Field[Any]) -> str:
    if row.metadata["choices"]:
        return "{" + ",".join(row.metadata["choices"]) + "}"
    return {bool: "BOOL", int: "N", float: "SECONDS" if row.name.endswith("_s") else "X"}.get(type(row.default), "TEXT")


def _help(row: Field[Any]) -> str:
    shown = str(row.default).lower() if isinstance(row.default, bool) else row.default
    return f"{row.metadata['help']} (default: {'none' if shown == '' else shown})".replace("%", "%%")


def _from_environment(row: Field[Any], environ: Mapping[str, str]) -> str | None:
    text = environ.get(PREFIX + row.name.upper())
    return environ.get(row.metadata["env"]) if text is None and row.metadata["env"] else text


def _convert(row: Field[Any], text: str) -> Any:
    kind: Any = type(row.default)
    if kind is bool:
        truth = {
            "true": True,
            "1": True,
            "on": True,
            "yes": True,
            "false": False,
            "0": False,
            "off": False,
            "no": False,
        }
        if text.lower() not in truth:
            raise StartError(f"--{row.name} takes true or false, not {text!r}")
        return truth[text.lower()]
    try:
        return kind(text)
    except ValueError:
        word = {int: "a whole number", float: "a number"}[kind]
        raise StartError(f"--{row.name} takes {word}, not {text!r}") from None
