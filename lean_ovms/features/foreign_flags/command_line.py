"""Reads command lines for other servers, whose flags and variables become options of this server.

The flags are listed in flags.txt, which explains its form, and in such files of other features. docs/coming_from.md
shows these tables.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, replace
from functools import cache
from typing import Any

from ...cli.arguments import OtherFlags, of_service, require_options
from ...cli.commands import value_of
from ...composition import compose
from ...config import listed, shown
from ...errors import StartError
from ...manifest import named

PROGRAMS = ("vllm", "ovms", "ollama", "llama-server")
"""The programs whose command lines, with their names, may follow the name of this program."""
SHORT_VERSION = (("vllm", "-v"), ("ollama", "-v"))
"""The programs for which -v means --version; for llama-server it is a flag for its log."""
MISSING = {
    ("ollama", "create"): "the models are directories and GGUF files; pull ORG/NAME fetches one",
    ("ollama", "cp"): "--model_aliases gives a model further names",
    ("ollama", "push"): "models are only pulled",
    ("ollama", "signin"): "set the environment variable HF_TOKEN",
    ("ollama", "signout"): "unset the environment variable HF_TOKEN",
    ("vllm", "complete"): "run-batch continues texts, and run MODEL chats",
    ("vllm", "collect-env"): "version shows the versions to include in a bug report",
}
"""The commands of other programs that this one lacks, with what to use instead."""
VARIABLES = ("VLLM_", "GIT_OPT_SET_", "LLAMA_", "OLLAMA_")
"""The prefixes of environment variables of vLLM, llama.cpp and Ollama, and of OVMS for libgit2, with which it pulls
models."""
LLAMA_ARG = "LLAMA_ARG_"
"""The prefix of llama.cpp's variables that stand for its flags."""
RENAMED = {
    "batch": "batch_size",
    "checkpoint_min_spacing_nt": "checkpoint_min_step",
    "endpoint_metrics": "metrics",
    "endpoint_props": "props",
    "endpoint_slots": "slots",
    "model": "-m",
    "n_parallel": "parallel",
    "rope_scaling_type": "rope_scaling",
    "spec_draft_cache_type_k": "spec_draft_type_k",
    "spec_draft_cache_type_v": "spec_draft_type_v",
    "spec_draft_hf_repo": "hf_repo_draft",
    "static_path": "path",
    "think": "reasoning_format",
    "think_budget": "reasoning_budget",
    "think_budget_message": "reasoning_budget_message",
    "ubatch": "ubatch_size",
}
"""llama.cpp's variables LLAMA_ARG_* that have another name than their flags, each with the name of its flag."""
NO_GRPC = "lean_ovms: --port has no effect: this server has no gRPC service; the REST port is --rest_port"
OVMS = "OVMS"
TRUE = ("true", "1", "on", "enabled")
"""The values of a file or a variable with which llama.cpp sets a flag that has no value."""
FALSE = ("false", "0", "off", "disabled")
"""The values with which it sets the flag that begins with "no"."""
_DOTTED = re.compile(r"(--?[a-zA-Z][\w-]*)((?:\.[\w-]+)+)(\+?)(?:=(.*))?", re.DOTALL)
"""Matches vLLM's flags for one member of a JSON value: `--flag.member`, `--flag.a.b=value`, `--flag.list+`.
https://docs.vllm.ai/en/stable/cli/serve.html#json-cli-arguments
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Another server's name of an option."""

    option: str
    """The name of this server's option."""
    server: str = ""
    """The name of the other server."""
    names: tuple[str, ...] = ()
    """The names of the flags, short ones with their hyphen."""
    how: str = ""
    """How the value is translated: a word of flags.txt, or "module:function"; "" if it is not translated."""
    name: str = ""
    """The text after that word: a value, a member, or an option for further names."""
    separator: str = ""
    """The separator of several names in a value; "" if they are separate arguments."""
    words: Mapping[str, str] = field(default_factory=dict)
    """The values for this server, by the corresponding values of the other server."""
    package: str = ""
    """The package of the function that translates values."""

    @property
    def bare(self) -> str:
        """The value of the option if the flag has no value; "" if the flag needs one."""
        return self.name if self.how == "always" else ""

    @property
    def further(self) -> str:
        """The option for all values except the first; "" if the flag takes one value."""
        return self.name if self.how == "names" else ""

    def read(self, text: str) -> str | dict[str, str]:
        """Translates a value to that of one or several options. Raises ValueError with the allowed values."""
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
        return text


def one_of(known: Mapping[str, Any]) -> str:
    """Returns a part of an error message that lists the allowed words."""
    return " or ".join(known) if len(known) == 2 else f"one of {', '.join(known)}"


def _number(text: str) -> float:
    try:
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    except ValueError:
        raise ValueError("a number") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFlags:
    """The flags and variables of other servers that this server knows."""

    aliases: tuple[Alias, ...]
    """Other names of options, in the order of the documentation, and flags of the same name with other values."""
    variables: tuple[Alias, ...]
    """Environment variables of other servers, over which this server's own take precedence."""
    ignored: dict[str, str]
    """Flags that can be ignored without changing a response, and the reasons."""
    refused: dict[str, str]
    """Flags that are refused, since they cannot be ignored, and the reasons."""
    of_ovms: frozenset[str]
    """The flags of OVMS among the ignored and the refused ones."""
    with_paths: frozenset[str]
    """The ignored and refused flags whose values may contain a slash."""


@cache
def known(without: str = "") -> ForeignFlags:
    """Returns the flags that a server knows, given the features that are left out."""
    options = {row.name for row in listed(without)}
    aliases: dict[str, dict[tuple[str, ...], Alias]] = {"option": {}, "variable": {}}
    reasons: dict[str, dict[str, str]] = {"ignored": {}, "refused": {}}
    of_ovms: set[str] = set()
    paths: set[str] = set()
    for package, file in compose(without).flags:
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
    """Yields each line of a file of flags with the server, the effect and the reason of its section."""
    server = effect = reason = ""
    for line in re.sub(r"\n {8}", " ", re.sub(r"#.*\n", "", text)).splitlines():
        if line.startswith(" "):
            yield server, effect, reason, line
        elif line:
            server, effect, reason = line.split(": ", 2)


def _alias(server: str, line: str, package: str) -> Alias:
    """Reads a line of a file of flags that names an option.

    Args:
        server: The server that has the names.
        line: The line: the names, " = ", the option, and how values are translated.
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
    """Returns a name of the tables as it is typed on a command line."""
    return name if name.startswith("-") else "--" + name


def read(alias: Alias, typed: str, text: str) -> dict[str, str]:
    """Returns the options and their values that a flag or a variable of another server sets.

    Args:
        alias: The flag or the variable.
        typed: Its name as the user has written it, for errors.
        text: Its value.

    Raises:
        StartError: The value is not allowed.
    """
    try:
        found = alias.read(text)
    except (ValueError, RecursionError) as error:
        allowed = f"JSON ({error})" if isinstance(error, json.JSONDecodeError | RecursionError) else str(error)
        raise StartError(f"{typed} must be {allowed}; it is {text!r}") from None
    return found if isinstance(found, dict) else {alias.option: found}


@cache
def _options_with(kind: str) -> frozenset[str]:
    """Returns the options whose values are JSON objects ("json_object"), or lists with blanks ("several")."""
    return frozenset(row.name for row in shown() if row.metadata[kind])


def merge(option: str, first: Any, second: str) -> str:
    """Merges two values of one option: objects and lists are merged, and of other values the second one counts.

    Args:
        option: The name of the option.
        first: The value so far; None or "" if there is none.
        second: The value that is added.

    Returns:
        The text of the merged value. If one value should be a JSON object but is not, it is the first one, and the
        check of the option reports the mistake.
    """
    if option in _options_with("several"):
        return " ".join(filter(None, (first, second)))
    if option in _options_with("json_object") and first and second:
        try:
            return json.dumps(json.loads(first) | json.loads(second))
        except (ValueError, TypeError):
            return str(first)  # the option's own check reports the error
    return second or str(first or "")


def joined_members(argv: Iterable[str]) -> list[str]:
    """Joins the arguments that set members of one flag to a JSON object, which comes last. Raises StartError."""
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


def _set(members: dict[str, Any], path: list[str], value: Any, argument: str) -> None:
    *outer, last = path
    for name in outer:
        members = members.setdefault(name, {})
        if not isinstance(members, dict):
            raise StartError(f"{argument}: {name} already has a value, so it cannot have members")
    before = members.get(last)
    members[last] = before + value if isinstance(before, list) and isinstance(value, list) else value


def _name_of(key: str) -> str:
    """Returns the name of the flag that a key of a preset or a variable of llama.cpp stands for."""
    name = key.removeprefix(LLAMA_ARG)
    return key.replace("-", "_") if name == key else RENAMED.get(name.lower(), name.lower())


class ForeignCommandLine(OtherFlags):
    """Adds the flags of the tables to a parser of this server's command line."""

    def __init__(self, without: str) -> None:
        super().__init__(without)
        self._known = known(without)
        self._notations = {alias.option: alias for alias in self._known.aliases if alias.option in alias.names}
        self.ignored = self._known.ignored.keys()
        self.valueless = {flag(name) for name in self.ignored - self._known.with_paths}

    def without_program(self, argv: Sequence[str]) -> Sequence[str]:
        program = os.path.basename(argv[0]) if argv else ""
        if program not in PROGRAMS:
            return argv
        word = argv[1] if len(argv) > 1 else ""
        if why := MISSING.get((program, word)):
            raise StartError(f"{program} {word} is not supported: {why}")
        return ["--version", *argv[2:]] if (program, word) in SHORT_VERSION else argv[1:]

    def arguments(self, argv: Sequence[str]) -> list[str]:
        return joined_members(self.without_program(argv))

    def words(self, key: str, value: str) -> list[str]:
        name = _name_of(key)
        alias = next((one for one in self._known.aliases if {name, f"-{key}"} & {*one.names}), None)
        short = f"-{key}" in (alias.names if alias else self._known.ignored.keys() | self._known.refused.keys())
        typed = f"-{key}" if short else flag(name)
        if alias is None or not alias.bare:
            return [f"{typed}={value}"]
        return [typed] if value.lower() in TRUE else []

    def notation(self, row: Field[Any]) -> dict[str, Any]:
        alias = self._notations.get(row.name)
        if alias is None and row.metadata["json_object"]:
            alias = Alias(option=row.name)  # its values are joined with those of other flags
        return {"action": _Aliased, "alias": alias} if alias is not None else {}

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        own = {row.name for row in shown(self.without)}
        # argparse creates a help formatter for each option outside of a group, which takes 8 ms.
        hidden = parser.add_argument_group()
        for alias in self._known.aliases:
            flags = [flag(name) for name in alias.names if name not in own]
            if not flags:
                continue
            dest = "port" if alias.option == "rest_port" else alias.option
            extra: dict[str, Any] = {"nargs": 0} if alias.bare else {"metavar": "VALUE"}
            if alias.further and not alias.separator:
                extra["nargs"] = "+"
            extra |= {"action": _Aliased, "alias": alias, "help": argparse.SUPPRESS}
            hidden.add_argument(*flags, dest=dest, default=None, **extra)
        for name in self._known.ignored.keys() | self._known.refused.keys():
            hidden.add_argument(flag(name), dest=name, nargs="?", const="", default=None, help=argparse.SUPPRESS)
        for name in self._switched_off(own):
            hidden.add_argument(f"--no_{name}", dest=name, action="store_const", const="", help=argparse.SUPPRESS)

    def _switched_off(self, own: set[str]) -> list[str]:
        """Returns the ignored flags that vLLM's command line may also have with --no."""
        names = own.union(self.ignored, self._known.refused, *(alias.names for alias in self._known.aliases))
        return [name for name in self.ignored if not name.startswith(("-", "no_")) and f"no_{name}" not in names]

    def settle(self, given: dict[str, Any]) -> None:
        for name, value in given.items():
            if value is None:
                continue
            if why := self._known.refused.get(name):
                raise StartError(f"{flag(name)} is not supported: {why}")
            if why := self._known.ignored.get(name):
                print(f"lean_ovms: {flag(name)} has no effect: {why}", file=sys.stderr)
        if given.get("port") is None:
            return
        # --port is --rest_port in vLLM and llama.cpp; if --rest_port is given too, it is OVMS's gRPC port.
        if given["rest_port"] is None:
            given["rest_port"] = given["port"]
        else:
            print(NO_GRPC, file=sys.stderr)

    def variables(self, environ: Mapping[str, str], given: dict[str, Any]) -> dict[str, str]:
        found: dict[str, str] = {}
        others = {
            name: value for name, value in environ.items() if name.startswith(VARIABLES) and not of_service(name, value)
        }
        for alias in self._known.variables:
            [name] = alias.names
            if value := others.pop(name, ""):
                found |= read(alias, name, value)
        for name, value in [*others.items()]:
            options = self._of_flag(name, value) if name.startswith(LLAMA_ARG) and value else None
            if options is not None:
                del others[name]
                found |= {option: merge(option, found.get(option), text) for option, text in options.items()}
        for option in found.keys() & _options_with("json_object"):
            if given.get(option):
                given[option] = merge(option, found[option], given[option])
        if others:
            print(
                f"lean_ovms: these environment variables have no effect: {', '.join(sorted(others))}", file=sys.stderr
            )
        return found

    def _of_flag(self, variable: str, value: str) -> dict[str, str] | None:
        """Returns the options that a variable sets as its flag does; None if the flag has no effect here.

        Args:
            variable: The name of the variable of llama.cpp.
            value: Its value.

        Raises:
            StartError: The value is not allowed.
        """
        name = _name_of(variable)
        aliases = {name: alias for alias in self._known.aliases for name in alias.names}
        alias = aliases.get(name)
        if value.lower() in FALSE and (negated := aliases.get(f"no_{name}")):
            return {negated.option: negated.bare}
        if alias is None:
            return {name: value} if name in {row.name for row in shown(self.without)} else None
        if alias.bare:
            return {alias.option: alias.bare} if value.lower() in TRUE else {}
        if alias.further:
            first, *further = value.split(alias.separator or None)
            return {alias.option: first, alias.further: " ".join(further)}
        return read(alias, variable, value)


class _Aliased(argparse.Action):
    """The action of a parser for a flag of another server.

    If the flag has several values, the first one sets one option, and the others set another one.
    """

    def __init__(self, *args: Any, alias: Alias, **options: Any) -> None:
        super().__init__(*args, **options)
        self._alias = alias

    def __call__(self, _: Any, found: argparse.Namespace, values: Any, typed: str | None = None) -> None:
        alias, dest = self._alias, self.dest
        if alias.further:
            first, *further = values if isinstance(values, list) else values.split(alias.separator)
            setattr(found, alias.further, " ".join(further) or None)
            setattr(found, dest, first)
        else:
            options = {dest: alias.bare} if alias.bare else read(alias, typed or "", values)
            named = {dest if option == alias.option else option: text for option, text in options.items()}
            require_options(named, vars(found))
            for name, text in named.items():
                setattr(found, name, merge(name, getattr(found, name), text))
