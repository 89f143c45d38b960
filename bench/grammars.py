"""Measures structured output: how many schemas compile, and how long compiling and computing masks take.

The schemas are generated from a seed, and consist of parts that are common in tools, forms and data models. The
vocabulary is generated to resemble a large one. tests/e2e/test_structured_engine.py tests that answers are valid.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bench import figures
from bench.report import Report, options
from lean_ovms.errors import RequestError
from lean_ovms.features.model_families.registry import registry
from lean_ovms.features.structured_output.child.limits import GrammarBounds
from lean_ovms.features.structured_output.constraint import build
from lean_ovms.grammar.call_syntax import GrammarContext
from lean_ovms.types import Json, OutputConstraint

WALK_TEXTS, WALK_TOKENS = 3, 40
WORDS = """id name title email city country street price amount currency quantity status kind tags notes due_date items
lines address phone url score category unit value source target enabled language weight description priority result"""
NAMES = WORDS.split()
LETTERS = "ba ke tion er in str ou ly pre con de th an ing ed al ment un re qu xi zo ma si na vo ter ur ic am"
LEAVES: tuple[Json, ...] = (
    *({"type": kind} for kind in ("string", "integer", "number", "boolean", ["integer", "null"])),
    *({"type": "string", "format": name} for name in ("date", "date-time", "uuid", "email", "ipv4")),
    *({"type": "string", "pattern": text} for text in (r"^[A-Z]{2,3}-\d{4}$", r"^\d{5}(-\d{4})?$", "^[a-z_]{0,15}$")),
    {"type": "string", "maxLength": 20},
    {"type": "string", "minLength": 1, "maxLength": 4000},
    {"type": "integer", "minimum": 0, "maximum": 120},
    {"type": "integer", "multipleOf": 5},
    {"type": "number", "exclusiveMinimum": 0},
    {"type": "number", "multipleOf": 0.01, "minimum": 0},
    {"anyOf": [{"type": "number"}, {"type": "null"}]},
    {"enum": NAMES[:5]},
)


def schema(dice: random.Random, depth: int = 0) -> Json:
    """Returns an object of values, arrays and further objects; a few have keywords that are costly or rare."""
    names = dice.sample(NAMES, dice.randint(1, 6 if depth else 9))
    found: Json = {"type": "object", "properties": {}, "required": [name for name in names if dice.random() < 0.7]}
    for name in names:
        kind = dice.random() if depth < 2 else 1.0
        value = schema(dice, depth + 1) if kind < 0.2 else dice.choice(LEAVES)
        if 0.15 < kind < 0.3:
            value = {"type": "array", "items": value, "maxItems": dice.randint(1, 4)}
        found["properties"][name] = value
    if dice.random() < 0.5:
        found["additionalProperties"] = False
    elif dice.random() < 0.1:
        found["patternProperties"] = {"^x_": {"type": "integer"}}
    if not depth and dice.random() < 0.15:
        found = {dice.choice(("allOf", "oneOf", "anyOf")): [found, {**found, "required": names}]}
    return found


def vocabulary(size: int) -> list[bytes]:
    """Returns pieces like those of a large vocabulary: bytes, words with and without a space, punctuation, numbers,
    Chinese."""
    dice, found = random.Random(1), dict.fromkeys(bytes([byte]) for byte in range(256))
    han, signs = [chr(code) for code in range(0x4E00, 0x9FFF)], list('{}[]":,.()<>/\\=-_;\n\t #*+0123456789')
    while len(found) < size - 1:
        parts = dice.choices((LETTERS.split(), han, signs), (77, 13, 10))[0]
        found.setdefault((dice.choice(("", " ")) + "".join(dice.choices(parts, k=dice.randint(1, 4)))).encode())
    return [*found, b"<end>"]


def tag_of(wanted: Json) -> str:
    """Returns the structural tag for answers that match a schema."""
    context = GrammarContext(form=registry().output_form(None, None), prompt_tail="", tools=())
    return build(OutputConstraint(format={"type": "json_schema", "json_schema": wanted}, strict=True), context).tag


def library(name: str, pieces: list[bytes]) -> Any:
    """Returns the grammar library with this name, running in this process. The last piece is the end of the text."""
    end = [len(pieces) - 1]
    if name == "guidance":
        from lean_ovms.features.guidance.child.library import Guidance

        return Guidance(pieces, len(pieces), end)
    from lean_ovms.features.xgrammar.child.matcher import XGrammar
    from lean_ovms.features.xgrammar.child.process import XGrammarCompiler
    from tests.features.xgrammar.compiled_here import Here

    return XGrammar(pieces, len(pieces), end, lambda known: Here(XGrammarCompiler(known, end)))


def masks(found: Any, tag: str, width: int) -> Iterator[float]:
    """Yields the CPU seconds of each mask, along random texts that the grammar allows."""
    for seed in range(WALK_TEXTS):
        matcher, dice = found.matcher(tag, frozenset()), random.Random(seed)
        for _ in range(WALK_TOKENS):
            began = time.process_time()
            matcher.prepare()
            yield time.process_time() - began
            line = np.zeros(width, np.float32)
            matcher.apply(line)
            allowed = np.flatnonzero(line[: width - 1] == 0)
            if not len(allowed):
                break
            matcher.consume(int(dice.choice(allowed)))


def main(argv: Sequence[str]) -> None:
    """Reports one row."""
    parser = options("grammars", __doc__)
    parser.add_argument("--library", choices=("guidance", "xgrammar"), default="guidance")
    parser.add_argument("--schemas", type=int, default=320)
    parser.add_argument("--vocabulary", type=int, default=152_000)
    args = parser.parse_args(argv)
    report, dice = Report("grammars", args), random.Random(args.seed)
    found = library(args.library, vocabulary(args.vocabulary))
    found.check(tag_of({}), GrammarBounds())
    times, walks, refused = [], [], 0
    for _ in range(args.schemas):
        try:
            began = time.process_time()
            tag = tag_of(schema(dice))
            found.check(tag, GrammarBounds())
            times.append(time.process_time() - began)
            walks += masks(found, tag, args.vocabulary)
        except RequestError:
            refused += 1
    ready, mask = figures.quantiles(times), figures.quantiles(walks, 1e6)
    report.row(case=args.library, compiled=len(times), refused=refused, ready_ms=ready, mask_us=mask)
    report.table("CPU time: p50/p90/p99/max", ("case", "compiled", "refused", "ready_ms", "mask_us"))
