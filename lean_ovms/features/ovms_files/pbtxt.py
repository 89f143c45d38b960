"""Parses graph.pbtxt, in protobuf's text format, for the options of its node of a known task.

The rest of a graph describes how MediaPipe connects calculators. Since there is no MediaPipe here, only its syntax is
checked. The node's options are parsed strictly, as in OVMS: an unknown one is an error that names it. The tables are in
graph_schema.py.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import Message

from ...composition import TEXT_GENERATION, Composition, compose
from ...errors import StartError
from ...manifest import TaskRow
from .graph_schema import GRAPHS, INVALID, PACKAGE, GraphRow, GraphSchema, fields_of, schema_of

LLM = GRAPHS[TEXT_GENERATION.name]
OPENING, CLOSING = ("{", "<"), ("}", ">")

Kind = descriptor_pb2.FieldDescriptorProto

KINDS = {
    "string": Kind.TYPE_STRING,
    "bool": Kind.TYPE_BOOL,
    "uint64": Kind.TYPE_UINT64,
    "uint32": Kind.TYPE_UINT32,
    "float": Kind.TYPE_FLOAT,
}


def node_options(text: str, composition: Composition | None = None) -> tuple[TaskRow, dict[str, Any]]:
    """Returns the task of a graph, and the options of its node. Raises StartError, which does not name the file.

    The composition None has all features.
    """
    composition = composition or compose()
    schema = _Messages(schema_of(composition))
    graph = schema.parse(text, "CalculatorGraphConfig", tolerant=True)
    calculators = [node.calculator for node in graph.node]
    found = of_calculators(calculators, composition.tasks)
    if found is None:
        named = ", ".join(name for name in calculators if name) or "none"
        text = f"it has no LLM node (calculator {LLM.calculators[0]}); its calculators: {named}"
        raise StartError(text, reason="Its graph has no LLM node.")
    name, node = found[1].message, _node(found[1].message)
    body = _options_text(text, f"{PACKAGE}.{name}")
    if body is None:
        older = (
            f"; {found[2]} belongs to an older OVMS: export the model again, or serve its directory "
            f"with --model_path DIR --task {found[0].name}"
            if found[2] != found[1].calculators[0]
            else ""
        )
        raise StartError(f"{node} has no node_options of the type {PACKAGE}.{name}{older}", reason=INVALID)
    options = schema.parse(body, name, tolerant=False)
    if missing := options.FindInitializationErrors():
        raise StartError(f"{node} does not set {', '.join(missing)}", reason=INVALID)
    return found[0], _values(options)


def _node(message: str) -> str:
    """Returns the name that error messages use for the node whose options are this message."""
    return "its LLM node" if message == LLM.message else "its node"


def _options_text(text: str, name: str) -> str | None:
    """Returns the text between the braces of the first node options of this type; None if there are none."""
    types = (f"/{name}", f"{name}.ext")  # the forms in the brackets of node_options and of options
    words = _tokens(text)
    opened = 0
    for at, word in enumerate(words):
        if word == "[":
            opened = at
        elif word == "]" and "".join(words[opened + 1 : at]).endswith(types):
            return _between_braces(words[at + 1 :])
    return None


def _between_braces(words: list[str]) -> str:
    start = next(i for i, word in enumerate(words) if word in OPENING)
    depth = 0
    for at in range(start, len(words)):
        depth += (words[at] in OPENING) - (words[at] in CLOSING)
        if not depth:
            return " ".join(words[start + 1 : at])
    raise AssertionError("the whole text has been parsed: braces are balanced")


def _tokens(text: str) -> list[str]:
    tokenizer = text_format.Tokenizer(text.splitlines())
    found = []
    while not tokenizer.AtEnd():
        found.append(tokenizer.token)
        tokenizer.NextToken()
    return found


def _values(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.enum_type is not None:
            value = field.enum_type.values_by_number[value].name
        if isinstance(value, Message):
            value = _values(value)
        elif field.message_type is not None:  # the field is repeated
            value = [_values(one) for one in value]
        found[field.name] = value
    return found


class _Messages:
    """Parses the messages of a graph."""

    def __init__(self, schema: GraphSchema) -> None:
        self._fields = schema.messages
        file = descriptor_pb2.FileDescriptorProto(name="graph.proto", package=PACKAGE, syntax="proto2")
        for name, values in schema.enums.items():
            # In protobuf the values of an enum share its scope, so each enum gets a message of its own.
            enum = file.message_type.add(name=f"In{name}").enum_type.add(name=name)
            for number, value in enumerate(values):
                enum.value.add(name=value, number=number)
        for name, fields in schema.messages.items():
            message = file.message_type.add(name=name)
            for number, field in enumerate(fields.split(", "), 1):
                _add(message, number, field, schema.enums)
        self._pool = descriptor_pool.DescriptorPool()
        self._pool.Add(file)

    def parse(self, text: str, name: str, *, tolerant: bool) -> Any:
        """Parses a message.

        Args:
            text: The text of the message.
            name: The name of the message.
            tolerant: Whether unknown fields are skipped.

        Raises:
            StartError: The text is not a valid message of this name.
        """
        message = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))()
        try:
            return text_format.Parse(text, message, allow_unknown_field=tolerant)
        except text_format.ParseError as error:
            raise StartError(self._explained(str(error), tolerant, name), reason=INVALID) from None
        except RecursionError:
            raise StartError("it is nested too deeply", reason=INVALID) from None

    def _explained(self, error: str, with_place: bool, message: str) -> str:
        unknown = re.search(r'has no field named "(\w+)"', error)
        if unknown:
            names = [field for fields in self._fields.values() for field in fields_of(fields)]
            near = difflib.get_close_matches(unknown[1], names, 1)
            return f"{_node(message)} has no option {unknown[1]!r}" + (f"; did you mean {near[0]}?" if near else "")
        place, _, what = error.partition(" : ")
        if not what:
            return error
        return f"line {place.split(':')[0]}: {what}" if with_place else f"{_node(message)}: {what}"


def _add(message: descriptor_pb2.DescriptorProto, number: int, field: str, enums: Collection[str]) -> None:
    kind, name = field.split()
    label = {"!": Kind.LABEL_REQUIRED, "*": Kind.LABEL_REPEATED}.get(kind[0], Kind.LABEL_OPTIONAL)
    kind = kind.lstrip("!*")
    added = message.field.add(name=name, number=number, label=label)
    if kind in KINDS:
        added.type = KINDS[kind]
    elif kind in enums:
        added.type, added.type_name = Kind.TYPE_ENUM, f".{PACKAGE}.In{kind}.{kind}"
    else:
        added.type, added.type_name = Kind.TYPE_MESSAGE, f".{PACKAGE}.{kind}"


def of_calculators(names: Iterable[str], tasks: Iterable[TaskRow]) -> tuple[TaskRow, GraphRow, str] | None:
    """Returns the task of a graph with these calculators, the form of its graphs, and the calculator; or None."""
    rows = [(task, GRAPHS[task.name]) for task in tasks if task.name in GRAPHS]
    return next(((task, graph, name) for name in names for task, graph in rows if name in graph.calculators), None)
