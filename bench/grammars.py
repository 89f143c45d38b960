"""Structured output: how many schemas compile, how long masks take, and how many of the finished answers are valid.

The schemas are generated from a seed, in the shapes that tools, forms and data models of applications have; jsonschema
is the oracle. Compiling and masks: with a vocabulary made up like a large one. Answers: the demo model's, whose sense
does not matter here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jsonschema

from lean_ovms.config import Config
from lean_ovms.engine.client.engine import EngineClient
from lean_ovms.errors import RequestError
from lean_ovms.features.structured_output.child.limits import GrammarBounds
from lean_ovms.features.structured_output.constraint import build
from lean_ovms.grammar.call_syntax import GrammarContext
from lean_ovms.text.decode.detokenizer import Detokenizer
from lean_ovms.text.parsers import registry
from lean_ovms.types import Json, OutputConstraint, SamplingParams
from lean_ovms.types.push import StreamIterator

WALK_TEXTS, WALK_TOKENS = 3, 40
AT_ONCE = 8
MOST_TOKENS = 160
NAMES = ("id", "name", "title", "email", "city", "country", "street", "zip", "price", "amount", "currency", "quantity",
         "status", "kind", "tags", "notes", "created_at", "due_date", "owner", "items", "lines", "address", "phone",
         "url", "score", "rating", "category", "unit", "value", "source", "target", "parent", "enabled", "language",
         "weight", "height", "first_name", "last_name", "description", "priority", "reason", "result", "steps", "query",
         "limit", "offset")  # fmt: skip
LETTERS = ("ba", "ke", "tion", "er", "in", "str", "ou", "ly", "pre", "con", "de", "th", "an", "ing", "ed", "al", "ment",
           "un", "re", "qu", "xi", "zo", "ma", "si", "na", "vo", "ter", "ur", "ic", "am")  # fmt: skip


class Schemas:
    """Random schemas of common shapes."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    def one(self) -> Json:
        """An object, as tools and response formats have, sometimes with definitions."""
        self._definitions: dict[str, Json] = {}
        schema = self._object(0)
        shape = self._dice.random()
        if shape < 0.08:
            parts = [schema, self._object(1)]
            for name in set(parts[0]["properties"]) & set(parts[1]["properties"]):
                parts[1]["properties"][name] = parts[0]["properties"][name]
            for part in parts:
                part.pop("additionalProperties", None)
            schema = {"allOf": parts}
        elif shape < 0.16:
            kinds = [self._tagged(kind) for kind in self._dice.sample(NAMES, 3)]
            schema = {self._dice.choice(("oneOf", "anyOf")): kinds}
        elif shape < 0.22:
            schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 3}
        return {**schema, "$defs": self._definitions} if self._definitions else schema

    def _object(self, depth: int) -> Json:
        dice = self._dice
        names = dice.sample(NAMES, dice.randint(1, 6 if depth else 9))
        schema: Json = {"type": "object", "properties": {name: self._value(depth + 1) for name in names}}
        schema["required"] = [name for name in names if dice.random() < 0.7]
        if dice.random() < 0.5:
            schema["additionalProperties"] = False
        elif dice.random() < 0.1:
            schema["additionalProperties"] = {"type": "string", "maxLength": 8}
        if dice.random() < 0.04:
            schema["patternProperties"] = {"^x_": {"type": "integer"}}
        if dice.random() < 0.03:
            schema["dependentRequired"] = {names[0]: [names[-1]]}
        return schema

    def _tagged(self, kind: str) -> Json:
        schema = self._object(1)
        others = {name: value for name, value in schema["properties"].items() if name != "kind"}
        schema["properties"] = {"kind": {"const": kind}, **others}
        schema["required"] = sorted({"kind", *schema["required"]})
        return schema

    def _value(self, depth: int) -> Json:
        kinds = [self._string, self._number, self._choice, self._string, self._number, self._nullable]
        if depth < 3:
            kinds += [self._array, self._object, self._reference]
        found = self._dice.choice(kinds)(depth)
        return {**found, "description": "What it is for."} if self._dice.random() < 0.3 else found

    def _string(self, depth: int) -> Json:
        forms: list[Json] = [{}, {}, {"maxLength": 20}, {"minLength": 1, "maxLength": 40}, {"maxLength": 4000}]
        forms += [{"format": name} for name in ("date", "date-time", "uuid", "email", "ipv4")]
        patterns = (r"^[A-Z]{2,3}-\d{4}$", r"^\d{5}(-\d{4})?$", r"^#[0-9a-fA-F]{6}$", r"^[a-z][a-z0-9_]{0,15}$")
        forms += [{"pattern": pattern} for pattern in patterns]
        return {"type": "string", **self._dice.choice(forms)}

    def _number(self, depth: int) -> Json:
        forms: list[Json] = [{"type": "integer"}, {"type": "number"}, {"type": "boolean"}]
        forms += [{"type": "integer", "minimum": 0, "maximum": 120}, {"type": "number", "minimum": 0, "maximum": 1}]
        forms += [{"type": "number", "exclusiveMinimum": 0}, {"type": "integer", "multipleOf": 5}]
        forms += [{"type": "number", "multipleOf": 0.01, "minimum": 0}]
        return self._dice.choice(forms)

    def _choice(self, depth: int) -> Json:
        values: list[Any] = self._dice.sample(NAMES, self._dice.randint(2, 6))
        return {"enum": values} if self._dice.random() < 0.5 else {"type": "string", "enum": values}

    def _nullable(self, depth: int) -> Json:
        inner = self._number(depth)
        if self._dice.random() < 0.5:
            return {"anyOf": [inner, {"type": "null"}]}
        return {**inner, "type": [inner["type"], "null"]}

    def _array(self, depth: int) -> Json:
        schema: Json = {"type": "array", "items": self._value(depth + 1), "maxItems": self._dice.randint(1, 4)}
        if self._dice.random() < 0.3:
            schema["minItems"] = 1
        if self._dice.random() < 0.08:
            schema["uniqueItems"] = True
        return schema

    def _reference(self, depth: int) -> Json:
        name = self._dice.choice(NAMES).title()
        if name not in self._definitions:
            self._definitions[name] = {}
            self._definitions[name] = self._object(2)
        return {"$ref": f"#/$defs/{name}"}


def schemas(count: int, seed: int) -> list[Json]:
    made = Schemas(seed)
    return [made.one() for _ in range(count)]


def vocabulary(size: int, seed: int = 1) -> list[bytes]:
    """Pieces as of a large vocabulary: bytes, words with and without a blank, signs, numbers, other scripts."""
    dice = random.Random(seed)
    found = dict.fromkeys(bytes([byte]) for byte in range(256))
    while len(found) < size - 1:
        kind = dice.random()
        if kind < 0.75:
            word = "".join(dice.choices(LETTERS, k=dice.randint(1, 4)))
            piece = dice.choice(("", " ")) + (word.title() if dice.random() < 0.2 else word)
        elif kind < 0.88:
            low, high = dice.choice(((0x4E00, 0x9FFF), (0x400, 0x4FF), (0x600, 0x6FF)))
            piece = "".join(chr(dice.randint(low, high)) for _ in range(dice.randint(1, 3)))
        elif kind < 0.96:
            piece = "".join(dice.choices('{}[]":,.()<>/\\=-_;\n\t #*+', k=dice.randint(1, 4)))
        else:
            piece = str(dice.randint(0, 999)) if kind < 0.98 else " " * dice.randint(1, 60)
        found.setdefault(piece.encode())
    return [*found, b"<end>"]


def tag_of(schema: Json) -> str:
    """The structural tag for answers of a schema."""
    context = GrammarContext(form=registry().output_form(None, None), prompt_tail="", tools=())
    return build(OutputConstraint(format={"type": "json_schema", "json_schema": schema}, strict=True), context).tag


def library(name: str, pieces: list[bytes]) -> Any:
    """The one that is asked for, in this process; all pieces but the last, which ends a text."""
    end = [len(pieces) - 1]
    if name == "guidance":
        from lean_ovms.features.guidance.child.library import Guidance

        return Guidance(pieces, len(pieces), end)
    from lean_ovms.features.xgrammar.child.matcher import XGrammar
    from lean_ovms.features.xgrammar.child.process import XGrammarCompiler

    class Here:
        """A checker without its process."""

        compiler = XGrammarCompiler(pieces, end)

        def ask(self, tag: str, bounds: GrammarBounds) -> dict[str, Any]:
            return self.compiler.check(tag, bounds)

        def stop(self) -> None:
            """There is nothing to stop."""

    return XGrammar(pieces, len(pieces), end, lambda _: Here())  # type: ignore[arg-type]


def masks(found: Any, tag: str, width: int) -> Iterator[float]:
    """CPU seconds of the masks of random texts."""
    import numpy as np

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


def compiling(name: str, wanted: list[Json], size: int) -> str:
    """A row of the report: compiling and masks."""
    pieces = vocabulary(size)
    found = library(name, pieces)
    found.check(tag_of({}), GrammarBounds())
    times, tokens, reasons = [], [], Counter[str]()
    for schema in wanted:
        try:
            began = time.process_time()
            tag = tag_of(schema)
            found.check(tag, GrammarBounds())
            times.append(time.process_time() - began)
            tokens += masks(found, tag, size)
        except RequestError as error:
            reasons[error.message.split(":")[-1].strip()[:60]] += 1
    return (
        f"{name}, {size} tokens: {len(times)} of {len(wanted)} compiled; ready {_quantiles(times, 1e3)} ms; "
        f"mask {_quantiles(tokens, 1e6)} us; refused: {dict(reasons)}"
    )


def _quantiles(values: list[float], scale: float) -> str:
    """Median, 99th percentile and maximum."""
    ordered = sorted(values) or [0.0]
    chosen = statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))], ordered[-1]
    return " / ".join(f"{value * scale:.3g}" for value in chosen)


async def answers(name: str, wanted: list[Json]) -> str:
    """A row of the report: answers of the demo model."""
    engine = EngineClient(Config(structured_output_backend=name, grammar_timeout_s=10))
    await engine.start()
    told, wrong = Counter[str](), Counter[str]()
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(schema: Json, seed: int) -> None:
        async with turn:
            try:
                text, reason = await _answer(engine, tag_of(schema), seed)
            except RequestError:
                told["refused"] += 1
                return
        told["finished" if reason == "stop" else "cut"] += 1
        if reason == "stop":
            try:
                jsonschema.validate(json.loads(text), schema)
            except ValueError:
                wrong["no JSON"] += 1
            except jsonschema.ValidationError as error:
                wrong[str(error.validator)] += 1

    try:
        await asyncio.gather(*(one(schema, seed) for seed, schema in enumerate(wanted)))
    finally:
        await engine.stop()
    valid = told["finished"] - sum(wrong.values())
    return f"{name}, demo model: {dict(told)}; valid {valid} of {told['finished']} finished; not valid by {dict(wrong)}"


async def _answer(engine: EngineClient, tag: str, seed: int) -> tuple[str, str]:
    reply = await engine.submit(
        "<|im_start|>user\nGive me an example as JSON.<|im_end|>\n<|im_start|>assistant\n",
        add_special_tokens=False,
        truncate=None,
        want_tokens=False,
        sampling=SamplingParams(max_tokens=MOST_TOKENS, temperature=0.7, seeds=(seed,)),
        constraint=tag,
    )
    detokenizer, text, reason = Detokenizer(engine.vocabulary, skip_special_tokens=True), "", ""
    try:
        async for records in StreamIterator(reply):
            for record in records:
                text += detokenizer.feed(record.tokens)
                reason = record.reason or reason
    finally:
        reply.cancel()
    return text + detokenizer.flush(), reason


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench grammars", description=__doc__)
    parser.add_argument("--library", choices=("guidance", "xgrammar"), default="guidance")
    parser.add_argument("--schemas", type=int, default=320)
    parser.add_argument("--vocabulary", type=int, default=152_000)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args(argv)
    wanted = schemas(options.schemas, options.seed)
    print(compiling(options.library, wanted, options.vocabulary), flush=True)
    print(asyncio.run(answers(options.library, wanted)), flush=True)
