"""Prints the output of a benchmark: a header line, tables, and JSON lines for machines."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence

from bench.processes import ROOT

PACKAGES = ("uvloop", "h11", "orjson", "openvino", "openvino-genai", "uvicorn", "starlette", "fastapi")


def header(**facts: object) -> dict[str, object]:
    """Returns the machine, CPU, versions and flags, without which the figures mean nothing."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    machine = {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 2)}
    system = {"kernel": platform.release(), "python": platform.python_version(), "commit": _commit()}
    return machine | system | versions | facts


def _commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    changed = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=ROOT, capture_output=True, text=True)
    return (asked.stdout.strip() or "unknown") + ("+" if changed.stdout.strip() else "")


def options(name: str, about: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the arguments that all benchmarks have."""
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=about)
    parser.add_argument("--json", default="", metavar="FILE", help="append JSON lines to FILE; - for the output")
    parser.add_argument("--seed", type=int, default=1)
    return parser


class Report:
    """Rows of figures, printed as Markdown. Quantiles are shown as p50/p90/p99/max, spreads as median (low to high)."""

    def __init__(self, name: str, args: argparse.Namespace, **facts: object) -> None:
        self.name = name
        self.rows: list[dict[str, object]] = []
        self._json = args.json
        self._out = sys.stderr if self._json == "-" else sys.stdout
        flags = {key: value for key, value in vars(args).items() if key != "json" and value != ""}
        self.header = header(bench=name, flags=flags, **facts)
        self._line(self.header)
        self.say(", ".join(f"{key} {value}" for key, value in self.header.items() if key != "flags"))
        self.say(" ".join(f"--{key} {value}" for key, value in flags.items()))

    def row(self, **figures: object) -> None:
        """Adds a row. Its JSON line is written at once."""
        self.rows.append(figures)
        self._line({"bench": self.name, **figures})

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Mapping[str, object]] | None = None) -> None:
        """Prints rows (all so far if None) with the given columns, without columns that no row has."""
        rows = self.rows if rows is None else list(rows)
        columns = [name for name in columns if any(name in row for row in rows)]
        lines = [[name.replace("_", " ") for name in columns], ["---"] * len(columns)]
        lines += [[shown(row.get(name, "")) for name in columns] for row in rows]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        self.say(f"\n{title}\n")
        for line in lines:
            self.say("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |")

    def say(self, text: str) -> None:
        """Prints a line of text."""
        print(text, file=self._out, flush=True)

    def doing(self, what: str) -> None:
        """Shows on a terminal what is being measured."""
        if sys.stderr.isatty():
            print(f"\r{what:<79}", end="\r", file=sys.stderr, flush=True)

    def _line(self, figures: dict[str, object]) -> None:
        line = json.dumps(figures)
        if self._json == "-":
            print(line, flush=True)
        elif self._json:
            with pathlib.Path(self._json).open("a") as file:
                file.write(line + "\n")


def shown(value: object) -> str:
    """Formats a figure."""
    if isinstance(value, dict) and "median" in value:
        return f"{value['median']:g} ({value['low']:g} to {value['high']:g})"
    if isinstance(value, dict):
        return "/".join(f"{part:g}" for part in value.values()) or "-"
    return f"{value:g}" if isinstance(value, float) else str(value)
