"""Writes the generated tables of docs/: `python -m tools.tables`. A test checks that they match the code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lean_ovms.api.fields import Field, doc_of
from lean_ovms.api.generation import common_fields
from lean_ovms.api.router import imported
from lean_ovms.cli import commands as command_table
from lean_ovms.composition import compose
from lean_ovms.config import GROUPS, listed
from lean_ovms.features.docs_page import openapi
from lean_ovms.features.foreign_flags import command_line as foreign_flags
from lean_ovms.features.model_families.registry import registry
from lean_ovms.features.ollama import fields as ollama
from lean_ovms.manifest import BASES, Route

ROOT = Path(__file__).parent.parent
NAMES = ("options", "endpoints", "fields", "operations", "cli", "coming_from")
FILES = tuple(ROOT / "docs" / f"{name}.md" for name in NAMES)


def options() -> str:
    """Returns tables of all options, grouped as in --help."""
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
    """Returns what an option takes: its choices, or its type and bounds."""
    row = option.metadata
    if named := [f"`{choice}`" for choice in row["choices"] if choice]:
        return ", ".join(named)
    kind = {bool: "bool", int: "int", float: "number", str: "object" if row["json_object"] else "string"}
    bounds = [f"{sign} {value:.12g}" for sign, value in (("≥", row["low"]), ("≤", row["high"])) if value is not None]
    return " ".join([kind[type(option.default)], ", ".join(bounds)]).rstrip()


def routes() -> str:
    """Returns tables of all paths by API, with method and summary. The usual base paths are abbreviated to `…`."""
    groups: dict[str, dict[tuple[str, str], list[str]]] = {}
    for route in compose().routes:
        group = groups.setdefault(route.api, {})
        prefixes = dict.fromkeys(_prefix(base, route) for base in route.bases)
        places = group.setdefault((route.method, doc_of(imported(route)).summary), [])
        places += [f"`{prefix}{route.path}`" for prefix in prefixes]
    parts = []
    references = openapi.references(compose())
    titles = {one.name: one.title for one in compose().features if one.title}
    for folder, rows in groups.items():
        link = references.get(folder)
        lines = [f"## {titles.get(folder, folder.title())}", "", *([f"[Reference]({link})", ""] if link else [])]
        lines += ["| path | method | what it does |", "|---|---|---|"]
        lines += [f"| {', '.join(places)} | {method} | {summary} |" for (method, summary), places in rows.items()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _prefix(base: str, route: Route) -> str:
    """Returns a base path, or "…" if it is in BASES and the route has all of BASES."""
    return "…" if base in BASES and set(BASES) <= set(route.bases) else base


def _path(route: Route) -> str:
    """Returns the first path of a route."""
    return _prefix(route.bases[0], route) + route.path


SAME_BODY = {
    "…/chat/completions": (*(f"…/chat/completions/{name}" for name in ("input_tokens", "batch", "render")), "/prewarm"),
    "…/completions": ("…/completions/render",),
    "…/responses": ("…/responses/input_tokens",),
    "…/messages": ("…/messages/count_tokens",),
    "/completion": ("/completions", "/infill"),
    "…/rerank": ("…/v2/rerank", "…/reranking"),
    "/embedding": ("/embeddings",),
    "…/v2/embed": ("…/embed",),
    "…/v2/chat": ("/cohere/v2/chat",),
}
"""Paths in docs/fields.md that also stand for other paths with the same fields. The page says so."""
READERS = {
    "any text": ("…/chat/completions", "…/completions", "…/responses", "…/messages", "/completion", "…/v2/chat"),
    "text": ("…/chat/completions", "…/completions", "…/responses", "…/messages"),
    "OpenAI": ("…/chat/completions", "…/completions", "…/responses"),
    "images": ("…/images/generations", "…/images/edits", "…/images/variations"),
    "audio": ("…/audio/transcriptions", "…/audio/translations"),
    "vectors": ("…/embeddings", "…/classify", "…/pooling", "…/rerank", "…/score"),
    "TEI": ("/embed", "/embed_all", "/embed_sparse", "/predict", "/similarity"),
    "Ollama": ("/api/chat", "/api/generate"),
}
"""Words in docs/fields.md for groups of paths, used where a field applies to all of the group."""


def request_fields() -> str:
    """Returns the table of all request fields, with values and the endpoints that read them."""
    found: dict[str, dict[str, Field]] = {}
    for route in compose().routes:
        for field in openapi.fields_of(doc_of(imported(route)), compose()):
            found.setdefault(field.name, {}).setdefault(_path(route), field)
    lines = ["| field | value | read by |", "|---|---|---|"]
    for name, fields in sorted(found.items()):
        first = next(iter(fields.values()))
        default = f", default {shown}" if (shown := _default(first)) else ""
        lines.append(f"| `{name}` | {first.kind} {_range(first)}".rstrip() + f"{default} | {_readers(fields)} |")
    return "\n".join(lines)


def _readers(paths: Iterable[str]) -> str:
    """Returns the endpoints by their first paths, abbreviated by READERS and without those that SAME_BODY implies."""
    left = list(paths)
    for path, others in SAME_BODY.items():
        if path in left:
            left = [one for one in left if one not in others]
    words = []
    for word, several in READERS.items():
        if set(several) <= set(left):
            words.append(word)
            left = [one for one in left if one not in several]
    return ", ".join([*words, *(path.removeprefix("…/") for path in left)])


def _names(fields: Iterable[Field]) -> str:
    """Returns the names of fields, each once."""
    return ", ".join(dict.fromkeys(f"`{field.name}`" for field in fields))


def _range(f: Field) -> str:
    """Returns the bounds of a field, without those that are only the limits of a 64-bit number."""
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
    """Returns the table of all metrics."""
    lines = ["| metric | type | labels | what it counts |", "|---|---|---|---|"]
    lines += [f"| `{f.name}` | {f.kind} | {', '.join(f.labels)} | {f.help} |" for f in compose().metrics]
    return "\n".join(lines)


SERVERS = ("OVMS", "vLLM", "llama.cpp")
"""The servers whose names of options are accepted, in the order of the table."""


def aliases() -> str:
    """Returns the table of other servers' names of options."""
    groups: dict[tuple[str, str], list[str]] = {}
    for alias in sorted(foreign_flags.known().aliases, key=lambda row: SERVERS.index(row.server)):
        value = f" {alias.bare}" if alias.bare else ""
        further = f", further names: `--{alias.further}`" if alias.further else ""
        names = [name for name in alias.names if name != alias.option]
        groups.setdefault((alias.server, f"`--{alias.option}{value}`{further}"), []).extend(names)
    rows = [f"| {server} | {_flags(names)} | {option} |" for (server, option), names in groups.items() if names]
    return "\n".join(["| server | flag | option here |", "|---|---|---|", *rows])


def _reasons(flags: Mapping[str, str]) -> str:
    """Returns the table of flags by their reasons, without those of OVMS, which docs/deployment.md lists."""
    groups: dict[str, list[str]] = {}
    for name, reason in flags.items():
        if name not in foreign_flags.known().of_ovms:
            groups.setdefault(reason, []).append(name)
    # With one pair of backquotes around all flags that have the same reason, the page is a tenth shorter.
    rows = [f"| {_flags(names).replace('`, `', ' ')} | {reason} |" for reason, names in groups.items()]
    return "\n".join(["| flags | reason |", "|---|---|", *rows])


def _flags(names: Iterable[str]) -> str:
    typed = [foreign_flags.flag(name) for name in names]
    return ", ".join(f"`{flag.replace('_', '-')}`" for flag in typed)


def commands() -> str:
    """Returns the table of commands."""
    rows = [f"| `{f'{name} {row.usage}'.strip()}` | {row.help} |" for name, row in command_table.commands().items()]
    return "\n".join(["| command | what it does |", "|---|---|", *rows]).replace(" | TOPIC", " \\| TOPIC")


def parser_names() -> str:
    """Returns the table of parsers by what they read, each with vLLM's names for it."""
    groups: dict[str, list[str]] = {}
    for name, row in sorted(registry().rows.items()):
        others = {
            other
            for alias in foreign_flags.known().aliases
            if alias.option in ("tool_parser", "reasoning_parser") and alias.how == "or"
            for other, ours in alias.words.items()
            if ours == name
        }
        reads = " and ".join([*["tool calls"] * row.tools, *["reasoning"] * row.reasoning])
        theirs = f" ({', '.join(f'`{other}`' for other in sorted(others))})" if others else ""
        groups.setdefault(reads, []).append(f"`{name}`{theirs}")
    rows = [f"| {reads} | {', '.join(names)} |" for reads, names in groups.items()]
    return "\n".join(["| reads | name, and vLLM's other names |", "|---|---|", *rows])


TABLES = {"options": options, "routes": routes, "fields": request_fields, "metrics": metrics}
TABLES |= {"aliases": aliases, "parsers": parser_names, "commands": commands}
TABLES |= {
    "ollama options": lambda: _names(ollama.OPTIONS),
    "accepted": lambda: _names(common_fields.ACCEPTED),
    "warned": lambda: _names(common_fields.UNSUPPORTED),
    "ignored": lambda: _reasons(foreign_flags.known().ignored),
    "refused": lambda: _reasons(foreign_flags.known().refused),
}


def rewritten(text: str) -> str:
    """Returns a text in which every table between markers is generated anew."""
    for name, make in TABLES.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text = re.sub(pattern, lambda m, make=make: m[1] + make() + "\n" + m[2], text, flags=re.S)
    return text


if __name__ == "__main__":
    for file in FILES:
        file.write_text(rewritten(file.read_text("utf-8")), "utf-8")
