"""Flags of vLLM, llama.cpp and OVMS: other names of our options, and flags that have no option here.

They stand in flags.txt, which explains its form, and in the files of features. docs/coming_from.md has these tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..composition import compose
from ..config import listed, shown
from ..errors import StartError
from ..manifest import named

OVMS = "OVMS"
PROGRAMS = ("vllm", "ovms", "ollama", "llama-server")
"""Programs whose command lines may be pasted behind ours, with their names."""
_DOTTED = re.compile(r"(--?[a-zA-Z][\w-]*)((?:\.[\w-]+)+)(\+?)(?:=(.*))?", re.DOTALL)
"""Matches vLLM's flags for one member of a JSON value: `--flag.member`, `--flag.a.b=value`, `--flag.list+`.
https://docs.vllm.ai/en/stable/cli/serve.html#json-cli-arguments
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Another server's name of an option."""

    option: str
    """The option."""
    server: str = ""
    """The server."""
    names: tuple[str, ...] = ()
    """The names of its flags, short ones with their hyphen."""
    how: str = ""
    """What the value means: a word of flags.txt, or a function as "module:function"; empty: it is ours."""
    name: str = ""
    """What stands behind the word: a value, a member, or an option for further names."""
    separator: str = ""
    """What is between names; empty: they are arguments of their own."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Values in our notation, by those of the other server."""
    package: str = ""
    """The package of the function."""

    @property
    def bare(self) -> str:
        """The value of the option for the flag alone; empty: the flag needs one."""
        return self.name if self.how == "always" else ""

    @property
    def further(self) -> str:
        """The option that takes all values but the first; empty: the flag takes one."""
        return self.name if self.how == "names" else ""

    def read(self, text: str) -> str | dict[str, str]:
        """Returns a value in our notation, or those of several options. Raises ValueError with what is allowed."""
        if ":" in self.how:
            value: str | dict[str, str] = named(self.package, self.how)(text)
            return value
        if text in self.words:
            value = self.words[text]
            return json.dumps({self.name: json.loads(value)}) if self.how == "member" and value else value
        if self.how in ("one", "member"):
            raise ValueError(one_of(self.words))
        if self.how == "number":
            return json.dumps({self.name: _number(text)})
        return text.upper() if self.how == "upper" else text


def one_of(known: Mapping[str, Any]) -> str:
    """Returns the allowed words as a part of an error message."""
    return " or ".join(known) if len(known) == 2 else f"one of {', '.join(known)}"


def _number(text: str) -> float:
    try:
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    except ValueError:
        raise ValueError("a number") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFlags:
    """The flags of other servers that a server knows."""

    aliases: tuple[Alias, ...]
    """Other names of our options, in the order of the documentation, and other notations of those of the same name."""
    variables: tuple[Alias, ...]
    """Environment variables of other servers; our own have precedence."""
    ignored: dict[str, str]
    """Flags whose absence changes no response, and why."""
    refused: dict[str, str]
    """Flags that cannot be ignored, and why."""
    of_ovms: frozenset[str]
    """Those of OVMS among the ignored and the refused ones."""
    with_paths: frozenset[str]
    """Those of them whose values may have a slash."""


@cache
def known(without: str = "") -> ForeignFlags:
    """Returns the flags that a server without these features knows."""
    options = {row.name for row in listed(without)}
    aliases: dict[str, dict[tuple[str, ...], Alias]] = {"option": {}, "variable": {}}
    reasons: dict[str, dict[str, str]] = {"ignored": {}, "refused": {}}
    of_ovms: set[str] = set()
    paths: set[str] = set()
    for package, file in (("lean_ovms.cli", Path(__file__).with_name("flags.txt")), *compose(without).flags):
        for server, effect, reason, line in _lines(file.read_text("utf-8")):
            if effect in aliases:
                table, alias = aliases[effect], _alias(server, line, package)
                before = table.get(alias.names, alias)
                table[alias.names] = replace(before, words={**before.words, **alias.words})
                continue
            for name, _, path in (word.partition("=") for word in line.split()):
                reasons[effect][name] = reason
                paths |= {name} if path else set()
                of_ovms |= {name} if server == OVMS else set()
    return ForeignFlags(
        aliases=tuple(alias for alias in aliases["option"].values() if alias.option in options),
        variables=tuple(alias for alias in aliases["variable"].values() if alias.option in options),
        ignored=reasons["ignored"],
        refused=reasons["refused"],
        of_ovms=frozenset(of_ovms),
        with_paths=frozenset(paths),
    )


def _lines(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Yields the lines of a file: the server, the effect and the reason of their entry, and what they have."""
    server = effect = reason = ""
    for line in re.sub(r"\n {8}", " ", re.sub(r"#.*\n", "", text)).splitlines():
        if line.startswith(" "):
            yield server, effect, reason, line
        elif line:
            server, effect, reason = line.split(": ", 2)


def _alias(server: str, line: str, package: str) -> Alias:
    """Reads a line of other names for an option.

    Args:
        server: The server that has the names.
        line: The names, " = ", the option and how values are read.
        package: The package of the functions that the line names.
    """
    names, _, meaning = line.partition(" = ")
    option, *rest = meaning.split()
    how = rest.pop(0) if rest else ""
    name = rest.pop(0) if how in ("always", "member", "number", "names") else ""
    separator = "".join(rest) if how == "names" else ""
    words = {} if how == "names" else dict(word.split("=", 1) for word in rest)
    return Alias(
        option=option,
        server=server,
        names=tuple(names.split()),
        how=how,
        name=name,
        separator=separator,
        words=words,
        package=package,
    )


def flag(name: str) -> str:
    """Returns a name of these tables as it is typed."""
    return name if name.startswith("-") else "--" + name


def read(alias: Alias, typed: str, text: str) -> dict[str, str]:
    """Returns the options that a flag or a variable of another server sets, with values in the notation of this one.

    Args:
        alias: The flag or the variable.
        typed: Its name as the user has written it, for the message.
        text: Its value.

    Raises:
        StartError: It does not take this value.
    """
    try:
        found = alias.read(text)
    except (ValueError, TypeError, AttributeError) as error:
        allowed = str(error) if not isinstance(error, json.JSONDecodeError) else f"JSON ({error})"
        raise StartError(f"{typed} takes {allowed}, not {text!r}") from None
    return found if isinstance(found, dict) else {alias.option: found}


@cache
def _objects() -> frozenset[str]:
    """Returns the options whose values are JSON objects."""
    return frozenset(row.name for row in shown() if row.metadata["json_object"])


def merge(option: str, first: Any, second: str) -> str:
    """Merges two values of one option: JSON objects are joined; of other values the second counts.

    Args:
        option: The name of the option.
        first: The value so far; None or "" if there is none.
        second: The value that is added.

    Returns:
        The text of the merged value. It is the first if one of them should be a JSON object and is none; the check of
        the option then reports that.
    """
    if option in _objects() and first and second:
        try:
            return json.dumps(json.loads(first) | json.loads(second))
        except (ValueError, TypeError):
            return str(first)  # the option's own check reports what is wrong with it
    return second or str(first or "")


def joined_members(argv: Iterable[str]) -> list[str]:
    """Returns the arguments; all members of one flag are one JSON object behind the others. Raises StartError."""
    found: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    arguments = iter(argv)
    for argument in arguments:
        dotted = _DOTTED.fullmatch(argument)
        if not dotted:
            found.append(argument)
            continue
        flag, path, plus, text = dotted.groups()
        if text is None and (text := next(arguments, None)) is None:
            raise StartError(f"{argument} needs a value")
        name = flag[:2] + flag[2:].replace("-", "_")
        _set(objects.setdefault(name, {}), path[1:].split("."), text.split(",") if plus else value_of(text), argument)
    for name, members in objects.items():
        found += [name, json.dumps(members)]
    return found


def value_of(text: str) -> Any:
    """Returns the value of a JSON text, or else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _set(members: dict[str, Any], path: list[str], value: Any, argument: str) -> None:
    *outer, last = path
    for name in outer:
        members = members.setdefault(name, {})
        if not isinstance(members, dict):
            raise StartError(f"{argument}: {name} has a value already, so it cannot have members")
    before = members.get(last)
    members[last] = before + value if isinstance(before, list) and isinstance(value, list) else value
