"""Write the generated tables of docs/: `python -m tools.tables`. A test compares them with the code."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lean_ovms.api import openapi
from lean_ovms.api import routes as table
from lean_ovms.api.fields import Field
from lean_ovms.api.generation import common_fields as shared
from lean_ovms.api.generation import sampling, structured_output, unsupported
from lean_ovms.api.route_doc import doc_of
from lean_ovms.api.router import imported
from lean_ovms.cli import command_table, foreign_flags
from lean_ovms.composition import compose
from lean_ovms.config import GROUPS, listed
from lean_ovms.features.llama_cpp import fields as llama_cpp
from lean_ovms.features.ollama import fields as ollama
from lean_ovms.observability.families import FAMILIES
from lean_ovms.text import parsers
from tools import import_rules

ROOT = Path(__file__).parent.parent
NAMES = ("options", "endpoints", "fields", "operations", "cli", "tour", "coming_from")
FILES = tuple(ROOT / "docs" / f"{name}.md" for name in NAMES)
API_NAMES = {"admin": "The server itself"}
"""The APIs by the folders of lean_ovms/api, where the folder's name is not enough."""


def options() -> str:
    """Every option, by the groups of --help: flag, values, default, help."""
    parts = []
    for group, about in GROUPS.items():
        lines = [f"## {group}", "", f"{about[0].upper()}{about[1:]}.", ""]
        lines += ["| option | value | default | what it does |", "|---|---|---|---|"]
        for field in listed():
            row = field.metadata
            if row["group"] == group:
                default = str(field.default).lower() if isinstance(field.default, bool) else field.default
                shown = "" if default == "" else f"`{default}`"
                name = f"env `{row['env']}`" if row["secret"] else f"`--{field.name}`"
                lines.append(f"| {name} | {_values(field)} | {shown} | {row['help']} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _values(option: Any) -> str:
    """What an option takes: its choices, or its type and bounds."""
    row = option.metadata
    if named := [f"`{choice}`" for choice in row["choices"] if choice]:
        return ", ".join(named)
    kind = {bool: "bool", int: "int", float: "number", str: "object" if row["json_object"] else "string"}
    bounds = [f"{sign} {value:.12g}" for sign, value in (("≥", row["low"]), ("≤", row["high"])) if value is not None]
    return " ".join([kind[type(option.default)], ", ".join(bounds)]).rstrip()


def routes() -> str:
    """Every path with its methods and what it does, by API; the bases are folded into `…`."""
    groups: dict[str, dict[tuple[str, str], list[str]]] = {}
    for route in table.table():
        group = groups.setdefault(route.api, {})
        prefixes = dict.fromkeys(_prefix(base, route) for base in route.bases)
        places = group.setdefault((route.method, doc_of(imported(route)).summary), [])
        places += [f"`{prefix}{route.path}`" for prefix in prefixes]
    parts = []
    references = openapi.references(compose())
    titles = API_NAMES | {one.name: one.title for one in compose().features if one.title}
    for folder, rows in groups.items():
        link = references.get(folder)
        lines = [f"## {titles.get(folder, folder.title())}", "", *([f"[Reference]({link})", ""] if link else [])]
        lines += ["| path | method | what it does |", "|---|---|---|"]
        lines += [f"| {', '.join(places)} | {method} | {summary} |" for (method, summary), places in rows.items()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _prefix(base: str, route: table.Route) -> str:
    """A base, with "…" for all of the usual ones together."""
    return "…" if base in table.BASES and set(table.BASES) <= set(route.bases) else base


def _path(route: table.Route) -> str:
    """The first path of a route."""
    return _prefix(route.bases[0], route) + route.path


def request_fields() -> str:
    """Every request field by endpoint."""
    groups: dict[str, tuple[Field, ...]] = {
        "Every generating endpoint: how to answer": shared.ANSWERING,
        "Every generating endpoint: sampling": sampling.SAMPLING,
        "Every generating endpoint: the form of the answer": structured_output.STRUCTURED,
        "Every generating endpoint: accepted, no effect": unsupported.ACCEPTED,
        "Every generating endpoint: accepted, and answered with a Warning header": unsupported.UNSUPPORTED,
    }
    first = {route.module: route for route in reversed(table.table())}
    for route in sorted(first.values(), key=lambda one: (_path(one), one.method != "POST")):
        path = _path(route)
        if members := getattr(module := importlib.import_module(route.module), "FIELDS", None):
            groups[f"{route.method} {path}" if path in groups else path] = members
            groups |= getattr(module, "MORE_FIELDS", {})
    groups["/completion"], groups["/infill"] = llama_cpp.COMPLETION, llama_cpp.INFILL[:4]
    groups["/api/generate, besides the fields of /api/chat"] = ollama.GENERATE[len(ollama.COMMON) :]
    groups["/api/chat, /api/generate: members of options"] = ollama.OPTIONS
    parts = []
    for title, members in groups.items():
        lines = [f"### {title}", "", "| field | type | range | default | meaning |", "|---|---|---|---|---|"]
        lines += [f"| `{r.name}` | {r.kind} | {_range(r)} | {_default(r)} | {r.help} |" for r in members]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _range(f: Field) -> str:
    """The bounds of a field, without those of a number in 64 bits."""
    if f.high is not None and f.high >= 1 << 62:
        f = replace(f, high=None, low=None if f.low is None or f.low <= -(1 << 62) else f.low)
    low = f"≥ {f.low:.12g}" if f.low is not None else f"> {f.above:.12g}" if f.above is not None else ""
    high = f"≤ {f.high:.12g}" if f.high is not None else f"< {f.below:.12g}" if f.below is not None else ""
    return ", ".join(part for part in (low, high) if part)


def _default(field: Field) -> str:
    value = field.default if field.builtin is None else field.builtin
    if value is None or isinstance(value, str):
        return value or ""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def metrics() -> str:
    """Every metric."""
    lines = ["| metric | type | labels | what it counts |", "|---|---|---|---|"]
    lines += [f"| `{f.name}` | {f.kind} | {', '.join(f.labels)} | {f.help} |" for f in [*FAMILIES, *compose().metrics]]
    return "\n".join(lines)


def imports() -> str:
    """What each folder may import, of ours and of others."""
    lines = ["| folder or module | may import | and of other packages |", "|---|---|---|"]
    for name, allowed in import_rules.ALLOWED.items():
        if name != "__init__":
            base = import_rules.BASE if allowed >= import_rules.BASE else set()
            mine = ", ".join(["base"] * bool(base) + [_file(other) for other in sorted(allowed - base)])
            lines.append(f"| {_file(name)} | {mine or 'nothing'} | {', '.join(_packages(name))} |")
    rest = ", ".join(_file(name) for name in sorted(import_rules.EVERYTHING))
    return "\n".join([*lines, f"| {rest} | everything | |"])


def _file(name: str) -> str:
    path = name.replace(".", "/") if name != "__version__" else "__init__"
    return f"`{path}/`" if (ROOT / "lean_ovms" / path).is_dir() else f"`{path}.py`"


def _packages(name: str) -> list[str]:
    """The packages that a folder may import, each with the file if it is one only."""
    found = []
    for package, places in sorted(import_rules.FOREIGN.items()):
        for place in sorted(places):
            if import_rules.rule_of(place.rstrip("/").removesuffix(".py").replace("/", ".")) == name:
                found.append(f"{package} in `{place}`" if place.rstrip("/").replace("/", ".") != name else package)
    return found


def aliases() -> str:
    """Other servers' names of options."""
    lines = ["| server | flag | option here |", "|---|---|---|"]
    for alias in foreign_flags.ALIASES:
        value = f" {alias.bare}" if alias.bare else ""
        further = f", further names: `--{alias.further}`" if alias.further else ""
        lines.append(f"| {alias.server} | {_flags(alias.names)} | `--{alias.option}{value}`{further} |")
    return "\n".join(lines)


def ignored() -> str:
    """Flags without an effect."""
    return _reasons(_without_ovms(foreign_flags.IGNORED))


def refused() -> str:
    """Flags that stop the start."""
    return _reasons(_without_ovms(foreign_flags.REFUSED))


def _without_ovms(table: Mapping[str, str]) -> dict[str, str]:
    """OVMS's flags are in docs/deployment.md."""
    return {name: reason for name, reason in table.items() if name not in foreign_flags.OVMS_FLAGS}


def _reasons(flags: Mapping[str, str]) -> str:
    groups: dict[str, list[str]] = {}
    for name, reason in flags.items():
        groups.setdefault(reason, []).append(name)
    rows = [f"| {_flags(names)} | {reason} |" for reason, names in groups.items()]
    return "\n".join(["| flags | reason |", "|---|---|", *rows])


def _flags(names: Iterable[str]) -> str:
    typed = [foreign_flags.flag(name) for name in names]
    return ", ".join(f"`{flag.replace('_', '-')}`" for flag in typed)


def commands() -> str:
    """The commands of the command line."""
    rows = [f"| `{f'{name} {row.usage}'.strip()}` | {row.help} |" for name, row in command_table.COMMANDS.items()]
    return "\n".join(["| command | what it does |", "|---|---|", *rows]).replace(" | TOPIC", " \\| TOPIC")


def parser_names() -> str:
    """Every parser, what it reads, and vLLM's names of it."""
    known = parsers.names()
    lines = ["| name | tool calls | reasoning | vLLM's other names |", "|---|---|---|---|"]
    for name in sorted({*known.tool, *known.reasoning}):
        others = {
            other
            for table in (foreign_flags.PARSERS, foreign_flags.REASONING)
            for other in table
            if table[other] == name
        }
        read = ("yes" if name in part else "" for part in known)
        lines.append(f"| `{name}` | {' | '.join(read)} | {', '.join(f'`{other}`' for other in sorted(others))} |")
    return "\n".join(lines)


TABLES = {"options": options, "routes": routes, "fields": request_fields, "metrics": metrics, "imports": imports}
TABLES |= {"aliases": aliases, "ignored": ignored, "refused": refused, "parsers": parser_names, "commands": commands}


def rewritten(text: str) -> str:
    """text with every table between its markers made anew."""
    for name, make in TABLES.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text = re.sub(pattern, lambda m, make=make: m[1] + make() + "\n" + m[2], text, flags=re.S)
    return text


if __name__ == "__main__":
    for file in FILES:
        file.write_text(rewritten(file.read_text("utf-8")), "utf-8")
