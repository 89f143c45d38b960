"""Rewrites structural tags (formats.py) for XGrammar's own compilers, which read the schemas in them.

Extensions of this server are rewritten in XGrammar's terms: values in a model family's own notation, whose syntax is
enforced without the schema, and, for the version inside openvino-genai, `optional`. Keywords of schemas that XGrammar
silently ignores are reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....grammar import formats
from ....types import SCHEMA_LITERALS, SCHEMA_MAPS, Json

MAX_BLANKS = 25
"""The most blanks between two tokens of JSON. The version inside openvino-genai has no such limit."""
_NOTHING: Json = {"type": "grammar", "grammar": 'root ::= ""\n'}
_IGNORED = frozenset(("not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains"))
_IGNORED |= frozenset(("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "$dynamicRef"))
_BESIDE = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")
"""The keywords that make XGrammar ignore all other keywords of a schema."""
_BOUNDS = frozenset(("minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
_BOUNDS |= frozenset(("multipleOf", "pattern", "format", "properties", "required", "items", "minItems", "maxItems"))
_SHAPES = frozenset(("properties", "required", "items"))
_FRACTIONS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_FORMATS = frozenset(("email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri"))
_FORMATS |= frozenset(("uri-reference", "uri-template", "json-pointer", "relative-json-pointer"))
_VALUES = """value ::= %s | number | string | "[" (value (comma value)*)? "]" | "{" (member (comma member)*)? "}"
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
"""
_PYTHON = (
    _VALUES % '"True" | "False" | "None"'
    + r"""string ::= "\"" ([^"\\\x00-\x1f\x7f] | "\\" ["\\nrt])* "\""
comma ::= "," " "?
member ::= string ":" " "? value
"""
)
_GEMMA = (
    _VALUES % '"true" | "false" | "null"'
    + """comma ::= ","
member ::= [a-zA-Z_] [a-zA-Z0-9_]* ":" value
string ::= "%(quote)s" ([^<] | "<" [^|e])* "%(quote)s"
"""
)
_ARGUMENTS = 'root ::= (argument (", " argument)*)?\nargument ::= [a-zA-Z_] [a-zA-Z0-9_]* "=" value\n'
_OBJECT = 'root ::= "{" (member (comma member)*)? "}"\n'
NOTATIONS = {
    "python_arguments": _ARGUMENTS + _PYTHON,
    "gemma": _OBJECT + _GEMMA % {"quote": '<|\\"|>'},
    "functiongemma": _OBJECT + _GEMMA % {"quote": "<escape>"},
}
"""Any arguments in a notation, as EBNF."""


class PlainFormat:
    """A format that is rewritten in XGrammar's terms."""

    def __init__(self, form: Any, *, within_genai: bool) -> None:
        """Rewrites a format with this server's extensions, for XGrammar or the older one within GenAI."""
        self._within_genai = within_genai
        self._ignored: set[str] = set()
        self.form = self._written(form)

    @property
    def notices(self) -> tuple[str, ...]:
        """The keywords and parts that XGrammar does not enforce, sorted."""
        return tuple(sorted(self._ignored))

    def _written(self, form: Any) -> Any:
        if isinstance(form, list):
            return [self._written(part) for part in form]
        if not isinstance(form, dict):
            return form
        if form.get("type") == "json_schema":
            return self._schema(form)
        done = {key: self._written(part) if key != "json_schema" else part for key, part in form.items()}
        done.pop("most", None)
        done.pop("special", None)
        if form.get("type") == "const_string" and form.get("value") == "":
            return _NOTHING
        if self._within_genai and form.get("type") == "optional":
            return {"type": "or", "elements": [done.get("content"), _NOTHING]}
        if self._within_genai and form.get("type") == "or" and isinstance(done.get("elements"), list):
            done["elements"] = [self._with_an_end(part) for part in done["elements"]]
        return done

    def _with_an_end(self, form: Any) -> Any:
        """Replaces a list of tool calls by a single call in a form that is one of several alternatives.

        GenAI's version of XGrammar cannot compile a list there.
        """
        kind = form.get("type") if isinstance(form, dict) else None
        if kind == "sequence" and isinstance(form.get("elements"), list):
            return {**form, "elements": [*form["elements"][:-1], *map(self._with_an_end, form["elements"][-1:])]}
        if kind != "tags_with_separator":
            return form
        self._ignored.add("several tool calls in one answer")
        return {"type": "or", "elements": form.get("tags")}

    def _schema(self, form: Json) -> Json:
        if form.get("style") in NOTATIONS:
            self._ignored.add("the schemas of arguments in this model's notation")
            return {"type": "grammar", "grammar": NOTATIONS[form["style"]]}
        for part in schemas(form.get("json_schema")):
            self._ignored |= _IGNORED & set(part)
            self._note_names(part)
            self._note_strings(part)
            if "oneOf" in part:
                self._ignored.add("oneOf (treated as anyOf)")
            if len(part.get("allOf", ())) > 1:
                self._ignored.add("allOf")
            if (first := next((word for word in _BESIDE if word in part), "")) and _BOUNDS & set(part):
                self._ignored.add(f"keywords beside {first}")
            if not {"type", *_BESIDE} & set(part) and _BOUNDS - _SHAPES & set(part):
                self._ignored.add("bounds without a type")
            if "multipleOf" in part and (self._within_genai or part.get("type") != "integer"):
                self._ignored.add("multipleOf")
            if self._within_genai:
                self._ignored.update(f"{key} with a fraction" for key in _FRACTIONS if _is_fraction(part.get(key)))
        done = dict(form)
        if one_line := done.get("style") == formats.ONE_LINE:
            del done["style"]
        return done if self._within_genai else {"max_whitespace_cnt": 1 if one_line else MAX_BLANKS, **done}

    def _note_names(self, part: Json) -> None:
        """Notes keywords about the names of properties that XGrammar does not enforce in this combination."""
        if part.get("required") and not part.get("properties") and "patternProperties" not in part:
            self._ignored.add("required without properties")
        if "patternProperties" in part and set(part.get("required", ())) - set(part.get("properties", ())):
            self._ignored.add("required beside patternProperties")
        if part.get("patternProperties") and part.get("properties"):
            self._ignored.add("patternProperties beside properties")
        if "propertyNames" in part:
            own = ("properties", "patternProperties", "required")
            beside = (*own, "additionalProperties") if self._within_genai else own
            told = [key for key in beside if part.get(key) not in (None, True, False, {}, [])]
            self._ignored.update(f"{key} beside propertyNames" for key in told)

    def _note_strings(self, part: Json) -> None:
        """Notes keywords of strings and references that XGrammar does not enforce."""
        lengths = bool({"minLength", "maxLength"} & set(part))
        if lengths and "pattern" in part:
            self._ignored.add("lengths beside a pattern")
        if isinstance(name := part.get("format"), str):
            if name not in _FORMATS:
                self._ignored.add(f"format {name[:40]}")
            elif lengths:
                self._ignored.add("lengths beside a format")
        if isinstance(ref := part.get("$ref"), str) and ref != "#" and not ref.startswith("#/"):
            self._ignored.add("$ref outside of the schema")


def _is_fraction(bound: Any) -> bool:
    return isinstance(bound, float) and not bound.is_integer()


def schemas(schema: Any) -> Iterator[Json]:
    """Yields a schema and all schemas inside it, without recursion."""
    todo = [schema]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        elif isinstance(one, dict):
            yield one
            for key, part in one.items():
                if key in SCHEMA_MAPS and isinstance(part, dict):
                    todo += part.values()
                elif key == "propertyNames" and isinstance(part, dict):
                    todo.append({"type": "string", **part})
                elif key not in SCHEMA_LITERALS:
                    todo.append(part)


def is_lark(grammar: str) -> bool:
    """Returns whether a grammar is in Lark's notation. Otherwise it is EBNF, with "::=" between a name and its body."""
    return "::=" not in grammar
