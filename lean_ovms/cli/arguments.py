"""Reads options from the command line, the environment and a file, and makes a Config of them.

Flags, defaults and help come from the fields in config/. Precedence: flag, environment (LEAN_OVMS_NAME, then vLLM's
names), --options_file, default. `--flag-name` and `--flag_name` are the same. A model may also be given without a flag,
after the word serve or alone. This module imports nothing heavy, so that --help is fast.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import Field
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from .._version import ABOUT, __version__
from ..composition import compose
from ..config import DEMO_MODEL, GROUPS, Config, listed, shown
from ..config.options import TYPE_NAMES, from_json
from ..errors import ExitStatus, StartError
from ..manifest import MODEL_SOURCE, OTHER_FLAGS
from ..util import files
from .commands import CommandParser, commands, described, hint

PREFIX = "LEAN_OVMS_"
SERVICE = re.compile(
    r"(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)=.*|PORT=\w+://.*|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*)"
)
"""Variables that Kubernetes sets for a service, such as one named lean-ovms, in every container of its namespace.
https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
"""
WORDS: dict[str, dict[str, str]] = {"serve": {}}
"""The core's commands that stand for options, with the options that they set."""
IN_REPOSITORY = "model_repository_path"
"""The option that serves all models of a directory. Another option or a word may name one of its models."""
POINTERS = ("model_path", "source_model", IN_REPOSITORY)
"""Options of the core that select the models."""
HUB_MODEL = re.compile(r"(?:(?:https://)?(?:hf\.co|huggingface\.co)/)?([\w-][\w.-]*/[\w-][\w.-]*)(?::([\w.-]+))?")
"""Matches organisation/name, as model hubs write it, with or without a colon and a model file's quantization."""
TRUTH = dict.fromkeys(("true", "1", "on", "yes"), True) | dict.fromkeys(("false", "0", "off", "no"), False)
COMMON = (
    "model_name", "rest_port", "rest_bind_address", "target_device", "cache_size", "max_model_len",
    "max_tokens_limit", "chat_template", "log_level",
)  # fmt: skip
"""The options of the core that a first start needs, listed after those that select the models."""

EXAMPLES = """examples:
  lean_ovms                                      the demo model, on port 8000
  lean_ovms serve ./Qwen3-8B-int4-ov             a directory that optimum-cli wrote
"""
EXAMPLE_OF_A_SOURCE = """\
  lean_ovms serve OpenVINO/Qwen3-8B-int4-ov      a model of the hub, pulled at the first start
"""
"""The example in the help of a server that can fetch models; the examples of commands follow it."""
ALL = "all"


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Returns the Config of a command line. --help and --version exit. Raises StartError naming the wrong option."""
    without = without_of(argv, environ)
    others = other_flags(without)
    _check_command(others.without_program(argv), without)
    words = _normalized(argv, without)
    given = vars(_parser_for(words, without).parse_intermixed_args(words))
    others.settle(given)
    _read_words(given, without)
    if empty := [name for name in pointers(without) if given.get(name) == ""]:  # as with an unset shell variable
        raise StartError(f"--{empty[0]} is empty: give it a value, or leave it out")
    rows = {row.name: row for row in listed(without)}
    _check_variables(environ, rows)
    of_others = others.variables(environ, given)
    texts = {name: text for name, row in rows.items() if (text := _text(row, given, environ, of_others)) is not None}
    values = _from_file(texts["options_file"], rows) if texts.get("options_file") else {}
    values |= {name: _convert(rows[name], text) for name, text in texts.items()}
    return Config(**values)


def _check_command(argv: Sequence[str], without: str) -> None:
    """Raises StartError if the first word resembles a command, so that the words after it are no options."""
    word, known = argv[0] if argv else "", commands(without)
    if word and not word.startswith("-") and "/" not in word and word not in (*known, *_demos(without)):
        near = hint(word, known, "")
        if near and not os.path.exists(word):
            raise StartError(f"there is no command {word} ({near})")


def names_model(options: Sequence[str]) -> bool:
    """Returns whether the options of a server already name its model, so that no word can. Raises StartError."""
    given = vars(parser().parse_intermixed_args(_normalized(options)))
    return any(given.get(name) for name in ("model", *pointers()) if name != IN_REPOSITORY)


@cache
def pointers(without: str = "") -> tuple[str, ...]:
    """Returns the options that select the models, on a server that lacks the features named in `without`."""
    settings = compose(without).settings
    return POINTERS if settings is None else (*POINTERS, settings.option)


def without_of(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Returns the value of --without, which is read first, since the features decide which flags exist."""
    found = environ.get(f"{PREFIX}WITHOUT", "")
    for place, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name == "--without":
            found = value if equals else "".join(argv[place + 1 : place + 2])
    return found


@cache
def words_of(without: str = "") -> dict[str, dict[str, str]]:
    """Returns the commands that stand for options, with these options, on a server without some features."""
    rows = compose(without).commands_of_options.items()
    return WORDS | {row.word: {name: "true"} for name, row in rows if row.word}


def _read_words(given: dict[str, Any], without: str) -> None:
    """Replaces words without a flag, a command that stands for options and a model, by options. Raises StartError."""
    of_options = words_of(without)
    words = [*given["words"], *([] if given["model"] is None else [given["model"]])]
    command = words.pop(0) if words and words[0] in of_options else "serve"
    given.update(of_options[command])
    if not words and (path := _model_among_names(given, without)):
        words = [path]
    if not words:
        return
    model = words.pop(0)
    if words and model not in commands(without):  # a command after options, which _model_of reports
        raise StartError(f"unrecognized arguments: {' '.join(words)} (--help lists the options)")
    if before := [name for name in pointers(without) if given.get(name) and name != IN_REPOSITORY]:
        raise StartError(f"{model} and --{before[0]} cannot be used together: both name the model")
    found = _model_of(model, command, without)
    if given.get("model_name"):
        found.pop("model_name", None)
    require_options(found, given)
    given.update(found)


def require_options(wanted: Iterable[str], known: Collection[str]) -> None:
    """Raises StartError if the meaning of a typed word needs an option that the server does not have."""
    for name in wanted:
        if name not in known:
            raise StartError(f"this needs the option --{name} of a feature that was left out")


def _model_among_names(given: dict[str, Any], without: str) -> str:
    """Returns the model that was typed after the names of --served-model-name; "" if there was none."""
    *names, last = (given["model_aliases"] or "").split(" ")
    if any(map(given.get, pointers(without))) or not os.path.exists(os.path.expanduser(last)):
        return ""
    given["model_aliases"] = " ".join(names) or None
    return last


def _demos(without: str) -> dict[str, Path]:
    """Returns the directories of the package's models by name, without those of the features that are left out."""
    return {"demo": DEMO_MODEL, **{one.name: one.inside(one.folder) for one in compose(without).demos}}


def _model_of(text: str, command: str, without: str) -> dict[str, str]:
    """Returns the options that select a model given without a flag.

    Args:
        text: The model as typed.
        command: The command before it.
        without: The names of the features that the server lacks.

    Raises:
        StartError: The text does not name a model.
    """
    if not text:
        raise StartError("the name of the model is empty: give a directory, or the name of a model on the hub")
    path, known = os.path.expanduser(text), commands(without)
    by_name = command not in WORDS
    if not by_name and (os.path.exists(path) or path.startswith(("/", "."))):
        return {"model_path": path}
    if text in (demos := _demos(without)):
        if by_name:
            raise StartError(f"{text} is included in lean_ovms: there is nothing to {command}")
        return {"model_path": str(demos[text]), "model_name": text}
    if text in known:
        raise StartError(f"{text} is a command; commands must come first: lean_ovms {text} --help")
    if not by_name and compose().format_of(PurePath(text.lower())) is not None:
        raise StartError(f"there is no file {text}")
    if HUB_MODEL.fullmatch(text):
        return hub_model(text)
    near = hint(text, known, "models on the hub have names like OpenVINO/Qwen3-0.6B-int8-ov")
    raise StartError(f"there is no directory or file {text} ({near})")


def hub_model(text: str) -> dict[str, str]:
    """Returns the options for a hub's model, such as ORG/NAME, ORG/NAME:Q4_K_M, or hf.co/ORG/NAME."""
    found = HUB_MODEL.fullmatch(text)
    name, quantization = found.groups() if found else (text, "")
    named = quantization not in (None, "", "latest")
    return {"source_model": name, **{row.option: quantization for row in compose().formats if named}}


def _check_variables(environ: Mapping[str, str], rows: Collection[str]) -> None:
    """Raises StartError if a variable has the server's prefix but names no option in `rows`; it suggests one."""
    known = [name.upper() for name in rows]
    for variable, value in environ.items():
        name = variable.removeprefix(PREFIX)
        if name == variable or name in known or of_service(name, value):
            continue
        near = hint(name.upper(), known, "--help lists the options", PREFIX)
        raise StartError(f"the environment variable {variable} does not name an option ({near})")


def of_service(name: str, value: str) -> bool:
    """Returns whether Kubernetes sets a variable of this name and value for a service."""
    return SERVICE.fullmatch(f"{name}={value}") is not None


def _text(
    row: Field[Any], given: Mapping[str, str | None], environ: Mapping[str, str], of_others: Mapping[str, str]
) -> str | None:
    """Returns the text of an option in the command line, or in a variable of the environment that is not empty.

    Args:
        row: The option.
        given: The options of the command line by name.
        environ: The environment.
        of_others: The options that variables of other servers set, by name.
    """
    text = given.get(row.name)
    if text is None:
        ours = environ.get(PREFIX + row.name.upper()) or environ.get(row.metadata["env"] or "")
        text = ours or of_others.get(row.name)
    return text if text is None or row.metadata["secret"] else _expanded(text)


def _expanded(value: Any) -> Any:
    """Returns a path with the home directory in place of ~, which shells do not expand in --option=~/file."""
    return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~/") else value


@cache
def parser(without: str = "") -> argparse.ArgumentParser:
    """Returns the argument parser of a server that lacks some features, with a group for each group of options."""
    result = _parser_of_own_flags(without)
    other_flags(without).add_to(result)
    return result


def _parser_for(words: Sequence[str], without: str) -> argparse.ArgumentParser:
    """Returns an argument parser that knows all flags that may occur in a command line.

    The thousand flags of other servers are added only if the words may contain one: adding them takes half as long as
    all other work on the options.
    """
    own = _parser_of_own_flags(without)
    flags = {word.partition("=")[0] for word in words if word.startswith("-")}
    return own if flags <= own._option_string_actions.keys() else parser(without)


def _parser_of_own_flags(without: str) -> argparse.ArgumentParser:
    """Returns the argument parser without the flags of other servers."""
    result = _make_parser()
    result.add_argument(
        "-h", "--help", nargs="?", const="", metavar="TOPIC", action=_Help, without=without, help=argparse.SUPPRESS
    )
    result.add_argument("--version", action="version", version=f"lean_ovms {__version__}")
    result.add_argument(
        "--completion", metavar="SHELL", action=_Completion, help="print completions for bash, zsh, fish"
    )
    _add_groups(result, shown(without), without)
    result.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    result.add_argument("--model", default=None, help=argparse.SUPPRESS)  # the same as a word without a flag
    return result


def _make_parser() -> CommandParser:
    return CommandParser(
        prog="lean_ovms",
        usage="%(prog)s [COMMAND] [MODEL] [--option VALUE ...]",
        description=ABOUT,
        epilog=f"Each option may also be set by the environment variable {PREFIX}NAME, or in --options_file.",
        allow_abbrev=False,
        add_help=False,
    )


def _add_groups(result: argparse.ArgumentParser, rows: Sequence[Field[Any]], without: str = "") -> None:
    """Adds options to a parser, under the titles of their groups."""
    others = other_flags(without)
    for name, about in GROUPS.items():
        if members := [row for row in rows if row.metadata["group"] == name]:
            group = result.add_argument_group(name, about)
            for row in members:
                _add_option(group, row, others)


def _add_option(group: Any, row: Field[Any], others: OtherFlags) -> None:
    """Adds an option to a group of the parser.

    If the option has a `bare` value, its flag may be given without a value and means that one, like OVMS's boolean
    flags.

    Args:
        group: The argument group of argparse.
        row: The field of the configuration that the option sets.
        others: The flags of other servers. One of them may have the same name.
    """
    bare = row.metadata["bare"]
    extra: dict[str, Any] = {} if bare is None else {"nargs": "?", "const": bare}
    if row.metadata["several"]:
        extra = {"nargs": "+", "action": _Joined}
    else:
        extra |= others.notation(row)
    group.add_argument(f"--{row.name}", metavar=_metavar(row), help=_help(row), default=None, **extra)


class OtherFlags:
    """The flags and environment variables of other servers that are understood; in the base class, none."""

    ignored: Collection[str] = ()
    """The names of flags that are accepted and ignored."""
    valueless: Collection[str] = ()
    """Flags that take no value, so that a word after one may be a model."""

    def __init__(self, without: str) -> None:
        """Creates the object for a server that lacks some features.

        Args:
            without: The names of the features that the server lacks.
        """
        self.without = without

    def without_program(self, argv: Sequence[str]) -> Sequence[str]:
        """Returns the arguments without the name of another server's program, which a pasted command begins with."""
        return argv

    def arguments(self, argv: Sequence[str]) -> list[str]:
        """Returns the arguments of a command line rewritten for argparse. Raises StartError."""
        return list(argv)

    def words(self, key: str, value: str) -> list[str]:
        """Returns the arguments for a key of a file that has flags without their hyphens."""
        return [f"--{key}={value}"]

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Adds the flags to a parser that has all options of this server."""

    def notation(self, row: Field[Any]) -> dict[str, Any]:
        """Returns the settings with which argparse reads an option whose name and values other servers use, too."""
        return {}

    def settle(self, given: dict[str, Any]) -> None:
        """Replaces what flags of other servers have set by options of this server.

        Args:
            given: The values that the parser has found, by the names of options; changed in place.

        Raises:
            StartError: This server cannot do what a flag asks for.
        """

    def variables(self, environ: Mapping[str, str], given: dict[str, Any]) -> dict[str, str]:
        """Returns options of others' variables, adds members to given ones, and prints the rest. Raises StartError."""
        return {}


@cache
def other_flags(without: str = "") -> OtherFlags:
    """Returns the flags of other servers that a server without these features reads."""
    found: OtherFlags = (compose(without).part(OTHER_FLAGS) or OtherFlags)(without)
    return found


class _Help(argparse.Action):
    """Prints the most used options, those of a topic (a group or an option), or all, and exits."""

    def __init__(self, *args: Any, without: str, **options: Any) -> None:
        """Creates the action, which omits some features from the help.

        Args:
            *args: What argparse passes to the constructor of an action.
            without: The names of the features whose options and commands are not shown, as in --without.
            **options: What argparse passes by name.
        """
        super().__init__(*args, **options)
        self._without = without

    def __call__(self, _: Any, __: argparse.Namespace, values: Any, flag: str | None = None) -> None:
        topic = (values or "").lstrip("-").replace("-", "_")
        rows = {row.name: row for row in shown(self._without)}
        groups = ", ".join(dict.fromkeys(row.metadata["group"] for row in rows.values()))
        chosen = [row for name, row in rows.items() if topic in (ALL, row.metadata["group"], name)]
        if topic and not chosen:
            raise StartError(
                f"--help={topic}: there is no such topic; the topics are {ALL}, {groups}, and names of options"
            )
        result = _make_parser()
        if topic:
            _add_groups(result, chosen, self._without)
        else:
            group = result.add_argument_group("options")
            more = [name for name, row in rows.items() if row.metadata["common"]]
            for name in filter(rows.__contains__, (*pointers(self._without), *COMMON, *more)):
                _add_option(group, rows[name], OtherFlags(self._without))
        print(result.format_help(), end="")
        if not topic:
            examples = EXAMPLES
            if MODEL_SOURCE in (composed := compose(self._without)).parts:
                lines = (f"  {row.example}\n" for row in composed.commands if row.example)
                examples += "".join((EXAMPLE_OF_A_SOURCE, *lines))
            print(f"\ncommands:\n{described(self._without)}\n\n{examples}")
            print(f"more options: --help={ALL}, or --help=GROUP with one of {groups}")
        sys.exit(ExitStatus.OK)


class _Completion(argparse.Action):
    """Prints a shell's completions, and exits."""

    def __call__(self, _: Any, __: argparse.Namespace, values: Any, flag: str | None = None) -> None:
        from . import completion  # no other start needs it

        print(completion.script(values), end="")
        sys.exit(ExitStatus.OK)


class _Joined(argparse.Action):
    """Joins all values of a flag by spaces. The flag may be repeated."""

    def __call__(self, _: Any, found: argparse.Namespace, values: Any, flag: str | None = None) -> None:
        before = getattr(found, self.dest)
        setattr(found, self.dest, " ".join([*([before] if before else []), *values]))


def own(own_parser: CommandParser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str], list[str]]:
    """Splits a command's arguments into its own, words without a flag, and a server's options. Raises StartError."""
    first = next((place for place, word in enumerate(argv) if word.startswith("-")), len(argv))
    given, rest = own_parser.parse_known_args([underscored(argument) for argument in argv[first:]])
    names = [name[2:] for action in own_parser._actions for name in action.option_strings if name.startswith("--")]
    for argument in rest:
        flag = argument.partition("=")[0]
        known = not flag.startswith("--") or flag in parser()._option_string_actions
        if not known and (near := hint(flag[2:], names, "", "--")):
            raise StartError(f"unrecognized arguments: {argument} ({near})")
    words = parser().parse_intermixed_args(_normalized(rest)).words
    for word in words:
        del rest[len(rest) - 1 - rest[::-1].index(word)]
    return given, [*argv[:first], *words], rest


def _normalized(argv: Sequence[str], without: str = "") -> list[str]:
    """Returns the arguments with underscores in flags.

    A switch before a model or a command gets "=true", so that argparse does not take this word for the flag's value.
    """
    found: list[str] = []
    others = other_flags(without)
    switches = {f"--{row.name}" for row in shown(without) if isinstance(row.default, bool)}
    for argument in map(underscored, others.arguments(argv)):
        if ("/" in argument or argument in words_of(without)) and not argument.startswith("-") and found:
            if found[-1] in switches:
                found[-1] += "=true"
            elif found[-1] in others.valueless:
                found.pop()
        found.append(argument)
    return found


def underscored(argument: str) -> str:
    """Returns an argument with the hyphens in its flag replaced by underscores."""
    if not re.match(r"--[\w-]+(=|$)", argument):
        return argument
    name, equals, value = argument.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value


def _from_file(path: str, rows: Mapping[str, Field[Any]]) -> dict[str, Any]:
    """Returns the options in a JSON file, which has one key for each. Raises StartError."""
    try:
        found = files.read(Path(path), files.unique)
    except OSError as error:
        raise StartError(f"--options_file {path}: {error.strerror}") from None
    except ValueError as error:
        raise StartError(f"--options_file {path} is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise StartError(f"--options_file {path} must contain a JSON object")
    values: dict[str, Any] = {}
    rows = {name: row for name, row in rows.items() if name != "options_file" and not row.metadata["secret"]}
    for key, value in found.items():
        name = key.replace("-", "_")
        if name in values:
            raise StartError(f"--options_file {path}: {name} is set twice")
        if name not in rows:
            near = difflib.get_close_matches(name, rows, 1)
            raise StartError(f"--options_file {path}: there is no option {key!r}" + (f" ({near[0]}?)" if near else ""))
        try:
            values[name] = _expanded(from_json(value, type(rows[name].default)))
        except ValueError as error:
            shown = json.dumps(value)[:80]
            raise StartError(f"--options_file {path}: {key} must be {error}, not {shown}") from None
    return values


def _metavar(row: Field[Any]) -> str:
    if row.metadata["choices"]:
        return "{" + ",".join(filter(None, row.metadata["choices"])) + "}"
    return {bool: "BOOL", int: "N", float: "SECONDS" if row.name.endswith("_s") else "X"}.get(type(row.default), "TEXT")


def _help(row: Field[Any]) -> str:
    shown = str(row.default).lower() if isinstance(row.default, bool) else row.default
    default = "" if shown == "" else f" (default: {shown})"  # "none" is a value of some
    return f"{row.metadata['help']}{default}".replace("%", "%%")


def _convert(row: Field[Any], text: str) -> Any:
    kind: Any = type(row.default)
    if kind is bool:
        if text.lower() not in TRUTH:
            raise StartError(f"--{row.name} must be true or false, not {text!r}")
        return TRUTH[text.lower()]
    try:
        return kind(text)
    except ValueError:
        raise StartError(f"--{row.name} must be {TYPE_NAMES[kind]}, not {text!r}") from None
