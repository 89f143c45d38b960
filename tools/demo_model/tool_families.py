"""Tools as people write them: names, parameters, and the sentences in which users ask for them.

A family has tool names, descriptions, parameters and phrasings. A phrasing contains {key} for each parameter that it
gives a value. The call leaves the others out, as optional parameters.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tools.demo_model.data import data_of
from tools.demo_model.words import (
    CITIES,
    NAMES,
    Rng,
    code,
    decimal,
    each,
    invented,
    number,
    phrase,
    proper,
    value,
    word,
)

Draw = Callable[[Rng], Any]


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter: its possible names, its JSON type, and a function that draws its values. `options` makes it
    an enum."""

    names: tuple[str, ...]
    kind: str
    draw: Draw
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    slots: dict[str, Slot]
    phrasings: tuple[str, ...]


def place(r: Rng) -> str:
    city = proper(r, CITIES)
    if r.random() < 0.08:
        return f"{city}, {r.choice(each('France Germany Spain Italy USA UK CA NY TX MA Japan'))}"
    return city


def mail(r: Rng) -> str:
    return f"{invented(r)}@{invented(r)}.{r.choice(('com', 'org', 'net'))}"


def day(r: Rng) -> str:
    return r.choice(("today", "tomorrow", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"))


def clock(r: Rng) -> str:
    if r.random() < 0.7:
        return f"{r.randint(0, 23)}:{r.choice(('00', '15', '30', '45'))}"
    return f"{r.randint(1, 12)} {r.choice(('am', 'pm'))}"


def ticker(r: Rng) -> str:
    return "".join(random.Random(r.random()).choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=r.randint(2, 4)))


def file(r: Rng) -> str:
    return r.choice(("", "/", "src/", "docs/")) + invented(r) + r.choice((".txt", ".py", ".md", ".json"))


def expression(r: Rng) -> str:
    return f" {r.choice('+-*/')} ".join(str(number(r)) for _ in range(r.choice((2, 2, 3))))


draws: dict[str, Draw] = {
    **{draw.__name__: draw for draw in (place, mail, day, clock, word, number, code, value, file, expression)},
    "person": lambda r: proper(r, NAMES),
    "small": lambda r: r.choice((r.randint(1, 12), r.randint(1, 99))),
    "text": lambda r: phrase(r, 1, 4),
    "address": lambda r: mail(r) if r.random() < 0.5 else proper(r, NAMES),
    "share": lambda r: ticker(r) if r.random() < 0.7 else proper(r, NAMES),
    "amount": lambda r: number(r) if r.random() < 0.6 else decimal(r),
    "degrees": lambda r: r.randint(10, 30) if r.random() < 0.6 else decimal(r),
}


def _slot(kind: str, draw: Any, names: Iterable[str]) -> Slot:
    """Returns the parameter of a row.

    Args:
        kind: Its JSON type.
        draw: The name of a function in `draws`, a list of values, or {"enum": values}.
        names: Its possible names.
    """
    names = tuple(names)
    if isinstance(draw, str):
        return Slot(names, kind, draws[draw])
    options = tuple(draw["enum"] if isinstance(draw, dict) else draw)
    return Slot(names, kind, lambda r: r.choice(options), options if isinstance(draw, dict) else ())


lists = data_of("tool_families")
MONEY: tuple[str, ...] = lists["MONEY"]
FAMILIES = tuple(
    Family(names, descriptions, {key: _slot(*slot) for key, slot in slots.items()}, ways)
    for names, descriptions, slots, ways in lists["ROWS"]
)
