"""Types of arguments behind references, which pydantic writes for every enum and model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lean_ovms.features.model_families.registry import registry
from lean_ovms.features.model_families.tool_schemas import ParameterSchemas
from lean_ovms.features.model_families.values import kinds_of
from lean_ovms.types import Json
from tests.features.model_families.test_any_cut import parse

DEFS: Json = {
    "Code": {"type": "string", "pattern": "^[0-9]+$"},
    "Color": {"enum": ["red", "null", "true"], "type": "string"},
    "Word": {"enum": ["1", "2"]},
    "Flag": {"type": "boolean"},
    "Chain": {"$ref": "#/$defs/Flag"},
    "a/b~c d": {"type": "string"},
    "Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "name": {"type": "string"}}},
    "Tree": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "string"}]},
    "Loop": {"$ref": "#/$defs/Loop"},
    "One": {"$ref": "#/$defs/Other"},
    "Other": {"$ref": "#/$defs/One"},
}
CODE, COLOR, FLAG = ({"$ref": f"#/$defs/{name}"} for name in ("Code", "Color", "Flag"))

KINDS: list[tuple[Json, set[str]]] = [
    (CODE, {"string"}),
    ({"$ref": "#/$defs/Word"}, {"string"}),
    ({**COLOR, "description": "of it", "default": "red"}, {"string"}),
    ({"$ref": "#/$defs/Chain"}, {"boolean"}),
    ({"anyOf": [COLOR, {"type": "null"}]}, {"string", "null"}),
    ({"oneOf": [FLAG, CODE]}, {"boolean", "string"}),
    ({"allOf": [CODE]}, {"string"}),
    ({"allOf": [CODE, {"maxLength": 3}]}, {"string"}),
    ({"allOf": [{"anyOf": [CODE, FLAG]}, {"type": ["boolean", "null"]}]}, {"boolean"}),
    ({"anyOf": [{"allOf": [{"anyOf": [{"allOf": [CODE]}]}]}, {"type": "null"}]}, {"string", "null"}),
    ({**CODE, "maxLength": 3}, {"string"}),
    ({**CODE, "nullable": True}, {"string", "null"}),
    ({"$ref": "#/$defs/a~1b~0c%20d"}, {"string"}),
    ({"$ref": "#/properties/plain"}, {"integer"}),
    ({"$ref": "#/definitions/Old"}, {"integer"}),
    ({"$ref": "#/$defs/Node"}, {"object"}),
    ({"$ref": "#"}, {"object"}),
    ({"$ref": "#/$defs/Tree"}, set()),
    ({"$ref": "#/$defs/Loop"}, set()),
    ({"$ref": "#/$defs/One"}, set()),
    ({"$ref": "#/$defs/Nothing"}, set()),
    ({"$ref": "https://example.com/a"}, set()),
    ({"$ref": 5}, set()),
]


def parameters(**properties: Any) -> Json:
    return {
        "type": "object",
        "properties": {"plain": {"type": "integer"}, **properties},
        "$defs": DEFS,
        "definitions": {"Old": {"type": "integer"}},
    }


def test_kinds_behind_references() -> None:
    assert [(schema, kinds_of(ParameterSchemas(parameters(a=schema))["a"])) for schema, _ in KINDS] == KINDS


ARGS: Json = {"$ref": "#/$defs/Args"}


@pytest.mark.parametrize("whole", [ARGS, {"allOf": [ARGS, {"properties": {"b": {}}}]}])
def test_parameters_may_be_a_reference_themselves(whole: Json) -> None:
    found = ParameterSchemas({**whole, "$defs": {**DEFS, "Args": {"type": "object", "properties": {"a": CODE}}}})
    assert kinds_of(found["a"]) == {"string"}


NOT_SCHEMAS = [None, True, 5, [], {"properties": []}, {"allOf": 5}, {"$ref": "#"}, {"$ref": "#/x"}, {"allOf": [5]}]


def test_what_is_no_schema_has_no_parameters() -> None:
    assert [whole for whole in NOT_SCHEMAS if list(ParameterSchemas(whole))] == []


def test_values_within_a_reference_to_itself() -> None:
    node = ParameterSchemas(parameters(node={"$ref": "#/$defs/Node"}))["node"]
    assert node["properties"]["next"]["properties"]["next"]["properties"]["name"] == {"type": "string"}


def test_many_alternatives_that_lead_back_are_looked_at_once() -> None:
    defs = {f"D{i}": {"anyOf": [{"$ref": f"#/$defs/D{j}"} for j in range(40)]} for i in range(40)}
    schemas = ParameterSchemas({"properties": {"a": {"$ref": "#/$defs/D0"}}, "$defs": defs})
    assert kinds_of(schemas["a"]) == set()


CALLS = {
    "qwen3coder": (
        "<tool_call>\n<function=f>\n",
        "<parameter=KEY>\nVALUE\n</parameter>\n",
        "</function>\n</tool_call>",
    ),
    "glm4_moe": ("<tool_call>f\n", "<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n", "</tool_call>"),
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="f">\n',
        '<parameter name="KEY">VALUE</parameter>\n',
        "</invoke>\n</minimax:tool_call>",
    ),
    "minimax_m3": (
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">',
        "]<]minimax[>[<KEY>VALUE]<]minimax[>[</KEY>",
        "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
    ),
}
TEXTS = {"code": "90210", "color": "null", "flag": "True", "maybe": "2", "none": "null", "all": "7"}
VALUES = {"code": "90210", "color": "null", "flag": True, "maybe": "2", "none": None, "all": "7"}


@pytest.mark.parametrize("family", CALLS)
def test_a_call_has_the_types_behind_references(family: str) -> None:
    optional = {"anyOf": [CODE, {"type": "null"}]}
    schema = parameters(code=CODE, color=COLOR, flag=FLAG, maybe=optional, none=optional, all={"allOf": [CODE]})
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    begin, one, end = CALLS[family]
    text = begin + "".join(one.replace("KEY", key).replace("VALUE", value) for key, value in TEXTS.items()) + end
    ((name, arguments),) = parse(registry().make(family, None, tools=tools), [text]).calls
    assert name == "f"
    assert json.loads(arguments) == VALUES
