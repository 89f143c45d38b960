"""Options of the command line as a program gives them, and errors that name them so."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...composition import compose
from ...config import listed
from ...errors import RequestError, StartError

COMMANDS = re.compile(r"\b(?:optimum-cli|convert_tokenizer|lean_ovms|lean-ovms|pip) ")
"""Matches the beginning of a shell command in a message. Its options keep their form."""


def with_keywords(options: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces the keywords of features among the options by the options that these turn on."""
    found = dict(options)
    for name, option in compose().keywords.items():
        if found.pop(name, False):
            found.setdefault(option, True)
    return found


def in_python(text: str) -> str:
    """Returns a message with options as keywords: max_num_seqs in place of --max_num_seqs."""
    begin = found.start() if (found := COMMANDS.search(text)) else len(text)
    names = {row.name for row in listed()}
    said = text[:begin].replace("--help lists the options", "docs/options.md lists the options")
    said = re.sub(
        r"(there is no option |unrecognized arguments: |did you mean )?--(\w+)",
        lambda match: _keyword(match, names),
        said,
    )
    return said + text[begin:]


def _keyword(match: re.Match[str], names: set[str]) -> str:
    before, name = match[1] or "", match[2]
    return before + name if before or name in names else match[0]


@contextlib.contextmanager
def python_errors() -> Iterator[None]:
    """Converts errors of requests to ValueError, and errors of the engine to RuntimeError."""
    try:
        yield
    except RequestError as error:
        wrong = error.status < 500 and error.status not in (408, 429)
        raise (ValueError if wrong else RuntimeError)(error.message) from error


@contextlib.contextmanager
def python_options() -> Iterator[None]:
    """Raises StartError in the words of a program."""
    try:
        yield
    except StartError as error:
        raise type(error)(in_python(str(error)), reason=error.reason, temporary=error.temporary) from error
