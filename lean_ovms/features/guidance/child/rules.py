"""Collects the rules of a grammar in llguidance's Lark, to which the writers of formats and of values add."""

from __future__ import annotations

import json
from typing import Any

from ....types import Json

WHITESPACE = "[ \\n\\r\\t]{1,25}"
"""The blanks allowed between two tokens of JSON: any indentation, but a model cannot write blanks forever."""
_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class GrammarRules:
    """Collects the rules of a grammar."""

    def __init__(self) -> None:
        self.rules: list[str] = []
        """The rules, each with its name."""
        self.ignored: set[str] = set()
        """The keywords of schemas that are not imposed."""
        self._names: dict[str, str] = {}

    def named(self, prefix: str, body: str) -> str:
        """Adds a rule, or with a capital prefix a terminal, and returns its name. Equal ones are added once."""
        key = f"{prefix}: {body}"
        if key not in self._names:
            self._names[key] = f"{prefix}{len(self._names)}"
            self.rules.append(f"{self._names[key]}: {body}")
        return self._names[key]

    def json(self, schema: Any, *, one_line: bool = False, **more: Any) -> str:
        """Adds a rule for the JSON values of a schema, and returns its name.

        With one_line, the only white space is one blank after each colon and comma. Further arguments are llguidance's.
        """
        blanks: Json = _ONE_LINE if one_line else {"whitespace_pattern": WHITESPACE}
        settings = {**blanks, "lenient": True, **more}
        whole = {**schema, "x-guidance": settings} if isinstance(schema, dict) else schema
        if schema is True:
            whole = {"x-guidance": settings}
        return self.named("json_", f"%json {json.dumps(whole)}")
