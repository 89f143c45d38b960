"""Calls written as a name and elements for each key and each value: GLM-4.5, LongCat, K2 Horizon, Hunyuan V3."""

from __future__ import annotations

import re

from .scanner import Steps
from .xml_calls import XmlCalls

_NAME = re.compile(r"[\w.\-]*")


class KeyValueCalls(XmlCalls):
    """NAME, then (<arg_key>KEY</arg_key><arg_value>value</arg_value>)*, with blanks between any two of them.

    keys: the family's spelling of <arg_key>; that of <arg_value> has the other word in the same place.
    separator: a tag that may follow the name.
    """

    trim = False
    separator = ""

    def name(self, after: str) -> Steps[str]:
        if after != self.after_name:
            key = yield from super().name(after)
            yield from self.before_value()
            value = after.replace("</", "<", 1).replace("arg_key", "arg_value")
            return key if (yield from self.scanner.literal(value)) else ""
        yield from self.scanner.space()
        name = yield from self.scanner.word(_NAME)
        if not name or (yield from self.scanner.space()) != "<":
            return ""
        if self.separator:
            yield from self.scanner.literal(self.separator)
        return name

    def before_value(self) -> Steps[None]:
        """Reads what stands between a key and its value."""
        yield from self.scanner.space()
