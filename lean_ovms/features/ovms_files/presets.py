"""Reads llama.cpp's presets, an INI file with a section for each model, as a list of models.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md#model-presets. The keys are options of this
server or flags of llama.cpp, without their hyphens, and mean what they mean on the command line; section [*] has those
of all models. Unlike in a config.json, relative paths are relative to the working directory.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from ...cli import arguments
from ...config import PER_MODEL, Config, listed
from ...errors import StartError
from ...util.files import read_text
from . import config_file
from .config_file import ConfigEntry, ConfigFile
from .feature import GRAPH

log = logging.getLogger("lean_ovms.models")

SUFFIX = ".ini"
EVERY = "*"
"""The name of the section with the options of all models."""
WITHOUT_EFFECT = ("load-on-startup", "stop-timeout", "dedup-cache-models")
"""The keys that llama.cpp has in these files only: when its router loads, stops and lists a model."""
_HEADER = re.compile(r"\[([^\]]+)\]\s*(?:[;#].*)?")
_ENTRY = re.compile(r"([A-Za-z_][\w.-]*)\s*=\s*(.*?)\s*(?:\s[;#].*)?")

Section = dict[str, str]


def read(path: Path, config: Config) -> ConfigFile:
    """Reads the file for a server with these options. Raises StartError."""
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise StartError(f"the file of presets {path} does not exist", reason="Config file not found.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"{path} cannot be read: {error}", reason="Config file cannot be opened.") from None
    others = arguments.other_flags(config.without)
    words = {name: _words(path, name, section, others) for name, section in _sections(path, text).items()}
    shared = words.pop(EVERY, [])
    return ConfigFile(entries=[_entry(path, name, shared + own, config) for name, own in words.items()], options={})


def _sections(path: Path, text: str) -> dict[str, Section]:
    """Returns the keys and values of each section, whose later occurrence replaces an earlier one as in llama.cpp."""
    found: dict[str, Section] = {}
    section: Section | None = None
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        line = line.strip()
        if not line or line[0] in ";#":
            continue
        if header := _HEADER.fullmatch(line):
            section = found[header[1].strip()] = {}
            continue
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            raise _invalid(f"{path}: line {number} is neither [NAME] nor KEY = VALUE: {line[:80]!r}")
        key, value = entry.groups()
        if key == "version":
            continue  # which llama.cpp skips, too
        if section is None:
            raise _invalid(f"{path}: line {number} has the key {key} before the first section")
        section[key] = value
    return found


def _words(path: Path, name: str, section: Section, others: arguments.OtherFlags) -> list[str]:
    """Returns the command-line arguments that a section stands for, without the flags that change nothing here."""
    words, unused = [], []
    for key, value in section.items():
        if {key, key.replace("-", "_"), f"-{key}"} & {*WITHOUT_EFFECT, *others.ignored}:
            unused.append(key)
        else:
            words += others.words(key, value)
    if unused:
        log.warning("%s: [%s]: without effect: %s", path, name, ", ".join(unused))
    return words


def _entry(path: Path, name: str, words: list[str], config: Config) -> ConfigEntry:
    """Returns a model with the options of command-line arguments. Raises StartError for one that no model has."""
    where, without = f"{path}: [{name}]", config.without
    try:
        given = arguments.parse(words, {f"{arguments.PREFIX}WITHOUT": without} if without else {})
    except StartError as error:
        raise _invalid(f"{where}: {error}") from None
    for row in listed(without):
        is_set = row.name != "without" and given.value(row.name) != row.default
        if is_set and row.metadata["group"] not in PER_MODEL:
            raise _invalid(f"{where}: --{row.name} is an option of the server, not of a model")
    options = config_file.model_options(given)
    directory = Path(options.pop("model_path", "") or path.parent / name)
    names = [options.pop("model_name", ""), *options.pop("model_aliases", "").split(" ")]
    if aliases := [one for one in names if one and one != name]:
        options["model_aliases"] = " ".join(aliases)
    return ConfigEntry(
        where=where, name=name, base=directory, graph=directory / GRAPH, wants_graph=False, options=options
    )


def _invalid(message: str) -> StartError:
    return StartError(message, reason=config_file.REASON)
