"""SmolLM2-135M-Instruct calls ten functions, although its chat template shows no tools and it has no notation for
calls."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from lean_ovms.types import Json
from tests.e2e.conftest import local_server
from tests.real.conftest import smollm2_of

UNIT: Json = {"$defs": {"Unit": {"enum": ["celsius", "fahrenheit"], "title": "Unit", "type": "string"}}}
PLACE: Json = {
    "type": "object",
    "properties": {"lat": {"type": "integer", "minimum": -90, "maximum": 90}, "name": {"enum": ["here", "there"]}},
    "required": ["lat", "name"],
}
CIRCLE: Json = {
    "type": "object",
    "properties": {"kind": {"const": "circle"}, "r": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["kind", "r"],
}
BOX: Json = {
    "type": "object",
    "properties": {"kind": {"const": "box"}, "full": {"type": "boolean"}},
    "required": ["kind", "full"],
}
SHORT: Json = {"type": "string", "maxLength": 20}


def of(properties: Json, **more: Any) -> Json:
    return {"type": "object", "properties": properties, "required": [*properties], **more}


FUNCTIONS: dict[str, tuple[str, Json | None]] = {
    "now": ("What time is it?", None),
    "roll_dice": ("Roll the dice.", {"type": "object", "properties": {}}),
    "get_weather": ("What is the weather in Paris?", of({"city": SHORT, "unit": {"$ref": "#/$defs/Unit"}}, **UNIT)),
    "set_light": (
        "Switch the light on.",
        {
            "type": "object",
            "properties": {"on": {"type": "boolean"}, "level": {"type": "integer", "minimum": 0, "maximum": 100}},
            "required": ["on"],
            "additionalProperties": False,
        },
    ),
    "send_mail": (
        "Write to bob@example.org and ann@example.org.",
        of({"to": {"type": "array", "items": SHORT, "minItems": 1, "maxItems": 3}, "subject": SHORT}),
    ),
    "pay": ("Pay 5 euros.", of({"amount": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 99},
        {"type": "string", "pattern": "^[0-9]{1,3} EUR$"}]}, "note": {"type": ["string", "null"], "maxLength": 9}})),
    "plan-trip": ("Plan a trip from Paris to Berlin.", of({"start": PLACE, "stops": {"type": "array", "items": PLACE,
        "maxItems": 2}})),
    "draw": ("Draw a circle.", of({"shape": {"oneOf": [CIRCLE, BOX]}})),
    "search": ("Search for cats.", {"type": "object", "properties": {"q": SHORT, "lang": {"enum": ["en", "cs"]}}}),
    "book": ("Book a room.", of({"day": {"type": "string", "format": "date"}, "nights": {"enum": [1, 2, 3]}})),
}  # fmt: skip
OTHER: Json = {"type": "function", "function": {"name": "other", "parameters": of({"yes": {"type": "boolean"}})}}


def tool(name: str) -> Json:
    parameters = FUNCTIONS[name][1]
    return {"type": "function", "function": {"name": name, **({"parameters": parameters} if parameters else {})}}


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize(("weights", "choices"), [("gguf", ("required", "named", "auto")), ("int8", ("required",))])
async def test_every_call_is_what_its_schema_allows(weights: str, choices: tuple[str, ...]) -> None:
    path = str(smollm2_of(weights))
    async with local_server(model_path=path, model_name="m") as local, local.client() as client:
        for name, (question, parameters) in FUNCTIONS.items():
            named = {"type": "function", "function": {"name": name}}
            for choice in (named if choice == "named" else choice for choice in choices):
                answer: Any = await client.chat.completions.create(
                    model="m",
                    messages=[{"role": "user", "content": question}],
                    tools=[tool(name), OTHER],  # type: ignore[list-item]
                    tool_choice=choice,  # type: ignore[arg-type]
                    temperature=0,
                    max_tokens=200,
                )
                calls = answer.choices[0].message.tool_calls or []
                assert choice == "auto" or len(calls) == 1, (name, choice, answer)
                for call in calls:
                    assert call.function.name in ((name,) if choice == named else (name, "other"))
                    schema = parameters if call.function.name == name else OTHER["function"]["parameters"]
                    jsonschema.validate(json.loads(call.function.arguments), schema or {"maxProperties": 0})
