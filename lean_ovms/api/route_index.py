"""The routes by module, so that a module of endpoints is imported by its first request and not at the start.

routes.txt has what routing and authorisation need; `python -m tools.tables` writes it from the modules' ROUTES. Under a
module's name it lists that module's routes. After the name: `model=` and the class of models with which the module is
imported while the server starts (FOR_MODEL), or `option=` and the option with which its `prepare(app)` is awaited then
(FOR_OPTION).
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from . import router
from .router import Handler

FILE = Path(__file__).with_name("routes.txt")
HEAD = "# Each module's routes: method, path, auth; whether vital, changing state, with a header. See route_index.py.\n"
_imported: dict[str, dict[tuple[str, str, str], Handler]] = {}
"""The handlers of a module by method, path and header."""


@dataclass(frozen=True, slots=True)
class Module:
    """A module of endpoints. name: below lean_ovms.api. model, option: of a server that imports it early, or ""."""

    name: str
    model: str = ""
    option: str = ""

    async def handlers(self) -> dict[tuple[str, str, str], Handler]:
        """Its handlers by method, path and header. The first call imports it, beside the event loop."""
        if self.name not in _imported:
            module = await self.imported()
            _imported[self.name] = {(route.method, route.path, route.header): route.handle for route in module.ROUTES}
        return _imported[self.name]

    async def imported(self) -> ModuleType:
        """The module itself."""
        return await asyncio.to_thread(importlib.import_module, f"{__package__}.{self.name}")

    def __str__(self) -> str:
        words = [self.name, f"model={self.model}" * bool(self.model), f"option={self.option}" * bool(self.option)]
        return " ".join(filter(None, words))


@dataclass(frozen=True, slots=True)
class Entry:
    """A route (see router.Route) of a module that need not be imported."""

    method: str
    path: str
    auth: str
    vital: bool
    changes: bool
    header: str
    module: Module

    @property
    def handler(self) -> Handler | None:
        """The handler, if its module is imported."""
        found = _imported.get(self.module.name)
        return None if found is None else found[self.method, self.path, self.header]

    async def load(self) -> Handler:
        """The handler. The first call imports its module."""
        return (await self.module.handlers())[self.method, self.path, self.header]

    def __str__(self) -> str:
        words = [self.method, self.path, self.auth, "vital" * self.vital, "changes" * self.changes]
        return " ".join(filter(None, [*words, f"header={self.header}" * bool(self.header)]))


def read() -> list[Entry]:
    """Every route of the file, in its order."""
    return parse(FILE.read_text("utf-8"))


def parse(text: str) -> list[Entry]:
    """Every route of the text of such a file."""
    entries = []
    for line in text.removeprefix(HEAD).splitlines():
        first, *rest = line.split()
        if not line.startswith(" "):
            module = Module(first, **dict(word.split("=") for word in rest))
            continue
        path, auth, *others = rest
        header = next((word.removeprefix("header=") for word in others if word.startswith("header=")), "")
        entries.append(Entry(first, path, auth, "vital" in others, "changes" in others, header, module))
    return entries


def render() -> str:
    """The text of the file, from the modules themselves, all of which it imports."""
    lines = [HEAD]
    for module in router.endpoints():
        mine = Module(
            module.__name__.removeprefix(f"{__package__}."),
            module.FOR_MODEL.__name__ if hasattr(module, "FOR_MODEL") else "",
            getattr(module, "FOR_OPTION", ""),
        )
        routes: list[router.Route] = module.ROUTES
        lines.append(f"{mine}\n")
        lines += [f"  {Entry(r.method, r.path, r.auth, r.vital, r.changes, r.header, mine)}\n" for r in routes]
    return "".join(lines)


def modules(entries: Iterable[Entry]) -> list[Module]:
    """Each module once."""
    return list(dict.fromkeys(entry.module for entry in entries))
