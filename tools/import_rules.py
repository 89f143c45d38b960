"""Which folder may import what: import_rules.txt, read. tests/conventions/test_layout.py holds the package to it."""

from __future__ import annotations

import re
from pathlib import Path


def _read(text: str) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Returns the sections of the file: for each name its words, those of the first section replaced by theirs."""
    sections = []
    for section in text.split("\n\n"):
        joined = section.replace("\n    ", " ")
        rows = re.findall(r"^(\w[\w.]*):(.*)$", joined, re.M)
        sections.append({name: set(words.split()) for name, words in rows})
    several, allowed, foreign = sections
    for words in (*several.values(), *allowed.values()):  # a row may name one above it
        for name in words & several.keys():
            words.remove(name)
            words |= several[name]
    return allowed, foreign


ALLOWED, FOREIGN = _read(Path(__file__).with_suffix(".txt").read_text("utf-8"))
"""What a module or a folder may import, by the longest name that fits, its own folder always; and who may import what
is not ours."""
DOORS = {"__init__", "asgi", "embed", "ray_serve"}
"""The public names of features that programs and hosts import: the only modules of the core that know a feature."""
EVERYTHING = {"features", "server", "cli", "__main__"}


def rule_of(module: str) -> str:
    """The longest name in ALLOWED or EVERYTHING that is `module` or a folder above it."""
    parts = module.split(".")
    names = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    found = [name for name in names if name in ALLOWED or name in EVERYTHING]
    return found[0] if found else parts[0]
