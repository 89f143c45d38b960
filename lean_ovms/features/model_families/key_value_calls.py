"""Reads calls with a name and elements for each key and each value: GLM-4.5, LongCat, K2 Horizon, Hunyuan V3."""

from __future__ import annotations

import re
from typing import ClassVar

from .json_calls import EnclosedJson
from .scanner import Steps
from .xml_calls import XmlCalls

_NAME = re.compile(r"[\w.\-]*")


def _value_start(key_end: str) -> str:
    """Returns the tag before a value, given the one after its key."""
    return key_end.replace("</", "<", 1).replace("arg_key", "arg_value")


class KeyValueCalls(XmlCalls):
    """Reads NAME, then (<arg_key>KEY</arg_key><arg_value>value</arg_value>)*, with white space between any two of them.

    The keys of `keys` are the family's tags for <arg_key>. The tag for <arg_value> is spelled alike with the other
    word, and may be missing.
    """

    trim = False
    separator = ""
    """A tag that may follow the name, or an empty text if there is none."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.inside += (*map(_value_start, cls.keys.values()), cls.separator)

    def call_follows(self) -> Steps[bool]:
        if (yield from super().call_follows()):
            return True
        name = yield from self.scanner.word(_NAME)
        yield from self.scanner.space()
        if name in self.out.parameters and (yield from self.scanner.literal(self.ends[0])):
            return True  # a call without arguments
        return bool(name) and (yield from self.scanner.literal(next(iter(self.keys))))

    def name(self, after: str) -> Steps[str]:
        if after != self.after_name:
            key = yield from super().name(after)
            yield from self.before_value()
            if key and not (yield from self.scanner.literal(_value_start(after))):
                return key if (yield from self.scanner.ahead(self.followers)) < 0 else ""
            return key
        yield from self.scanner.space()
        name = yield from self.scanner.word(_NAME)
        if not name or (yield from self.scanner.space()) != "<":
            return ""
        if self.separator and not (yield from self.scanner.literal(self.separator)) and self.scanner.ended:
            self.scanner.drop_rest()
        return name

    def before_value(self) -> Steps[None]:
        """Reads the text between a key and its value."""
        yield from self.scanner.space()


class KeyValueOrJson(EnclosedJson):
    """Reads calls between tags, each of which may be in elements or in JSON."""

    elements: ClassVar[type[KeyValueCalls]]
    """The reader of calls in elements."""

    def prepare(self) -> None:
        self._elements = self.elements(self.out)
        self.inside = self._elements.inside

    def read(self, tag: str) -> Steps[bool]:
        if tag != self.tags[-1] and (yield from self.scanner.space()) not in ("{", "["):
            return (yield from self._elements.call())
        return (yield from super().read(tag))

    def call_follows(self) -> Steps[bool]:
        return (yield from self._elements.call_follows())
