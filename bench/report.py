"""What a benchmark prints: a header line, tables in the terminal, JSON lines for machines, progress while it runs."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.processes import ROOT

PACKAGES = ("uvloop", "h11", "orjson", "openvino", "openvino-genai", "uvicorn", "starlette", "fastapi")


def header(**facts: object) -> dict[str, object]:
    """Machine, CPU, versions and flags; without them a number means nothing."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": _commit(),
        **versions,
        **facts,
    }


def _commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    changed = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=ROOT, capture_output=True, text=True)
    return (asked.stdout.strip() or "unknown") + ("+" if changed.stdout.strip() else "")


def options(name: str, about: str | None) -> argparse.ArgumentParser:
    """The arguments that every benchmark has."""
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=about)
    parser.add_argument("--json", default="", metavar="FILE", help="append JSON lines to FILE; - for the output")
    parser.add_argument("--seed", type=int, default=1)
    return parser


class Report:
    """Rows of figures, printed as added. Quantiles are shown as p50/p90/p99/max, spreads as median (low to high)."""

    def __init__(self, name: str, args: argparse.Namespace, **facts: object) -> None:
        self.name = name
        self.rows: list[dict[str, object]] = []
        self._json = args.json
        self._console = Console(stderr=self._json == "-", highlight=False)
        if not self._console.is_terminal:
            self._console.width = 170
        flags = {key: value for key, value in vars(args).items() if key != "json" and value != ""}
        self.header = header(bench=name, flags=flags, **facts)
        self._line(self.header)
        shown = (f"{key} {value}" for key, value in self.header.items() if key != "flags")
        self._console.print("[dim]" + ", ".join(shown) + "[/]")
        self._console.print("[dim]" + " ".join(f"--{key} {value}" for key, value in flags.items()) + "[/]")

    def row(self, **figures: object) -> None:
        """Add one row; its JSON line is written at once."""
        self.rows.append(figures)
        self._line({"bench": self.name, **figures})

    def table(self, title: str, columns: Sequence[str], rows: Iterable[dict[str, object]] | None = None) -> None:
        """Show rows (all so far if None): these columns, those that any row has."""
        rows = self.rows if rows is None else list(rows)
        columns = [name for name in columns if any(name in row for row in rows)]
        table = Table(title=title, title_justify="left", title_style="bold")
        for name in columns:
            table.add_column(name.replace("_", " "), justify="left" if name in ("case", "who") else "right")
        for row in rows:
            table.add_row(*(shown(row.get(name, "")) for name in columns))
        self._console.print(table)

    def say(self, text: str) -> None:
        """A line of text."""
        self._console.print(text)

    @contextlib.contextmanager
    def progress(self, total: int, what: str) -> Iterator[Progress]:
        """A bar that tick() advances."""
        parts = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*parts, console=self._console, transient=True, refresh_per_second=2) as bar:
            bar.add_task(what, total=total)
            yield bar

    def _line(self, figures: dict[str, object]) -> None:
        line = json.dumps(figures)
        if self._json == "-":
            print(line, flush=True)
        elif self._json:
            with pathlib.Path(self._json).open("a") as file:
                file.write(line + "\n")


def tick(bar: Progress, what: str) -> None:
    """One more is done; name the next."""
    bar.update(bar.task_ids[0], advance=1, description=what)


def shown(value: object) -> str:
    """A figure in readable form."""
    if isinstance(value, dict) and "median" in value:
        return f"{value['median']:g} ({value['low']:g} to {value['high']:g})"
    if isinstance(value, dict):
        return "/".join(f"{part:g}" for part in value.values()) or "-"
    return f"{value:g}" if isinstance(value, float) else str(value)
