"""A JSON schema's `pattern` as a grammar of the inside of a JSON string. Knows no schemas.

The dialect is what ECMA 262 and Python share, without look-around, back references and classes by name. A pattern is
searched for in a string, so a string that is exactly one match satisfies it: the grammar allows these.
Linear in the pattern's length; nothing backtracks.
"""

from __future__ import annotations

from .ebnf import Ebnf, char_class, either, literal, repeat

MAX_COUNT = 256
MAX_DEPTH = 32
Ranges = list[tuple[int, int]]

_DIGIT: Ranges = [(48, 57)]
_WORD: Ranges = [(48, 57), (65, 90), (95, 95), (97, 122)]
_BLANK: Ranges = [(9, 10), (13, 13), (32, 32)]
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _BLANK}
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0}
_WRITTEN = {34: '"\\\\\\""', 92: '"\\\\\\\\"', 10: '"\\\\n"', 13: '"\\\\r"', 9: '"\\\\t"'}
"""Characters that a JSON string writes as an escape, as EBNF literals."""
_NEVER_PLAIN: Ranges = [(0, 31), (34, 34), (92, 92)]
_END = 0x10FFFF


class NotSupported(Exception):
    """The pattern has a part that this kind of grammar cannot express."""


def pattern(text: str, ebnf: Ebnf, *, plain: bool = False) -> str:
    """An expression for a JSON string's inside; plain: for text that is no JSON. Raises NotSupported."""
    return _Parser(text, ebnf, plain).whole()


class _Parser:
    def __init__(self, text: str, ebnf: Ebnf, plain: bool) -> None:
        self.text = text
        self.ebnf = ebnf
        self.written = written_plain if plain else written
        self.position = 0
        self.depth = 0

    def whole(self) -> str:
        expression = self.alternatives()
        if self.position < len(self.text):
            raise NotSupported("an unmatched )")
        return expression

    def peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def next_char(self) -> str:
        char = self.peek()
        if not char:
            raise NotSupported("it ends too early")
        self.position += 1
        return char

    def alternatives(self) -> str:
        options = [self.sequence()]
        while self.peek() == "|":
            self.position += 1
            options.append(self.sequence())
        return self.ebnf.choice(options)

    def sequence(self) -> str:
        items: list[str] = []
        if self.peek() == "^" and self.depth == 0:
            self.position += 1
        while self.peek() not in ("", "|", ")"):
            if self.peek() == "$" and self.depth == 0 and self.text[self.position + 1 : self.position + 2] in ("", "|"):
                self.position += 1
                break
            items.append(self.quantified(self.atom()))
        return " ".join(items) or '""'

    def atom(self) -> str:
        char = self.next_char()
        if char == "(":
            return self.group()
        if char == "[":
            return self.written(self.char_set())
        if char == ".":
            return self.written(_outside([(10, 10), (13, 13)]))
        if char == "\\":
            return self.written(self.escape())
        if char in "*+?{^$":
            raise NotSupported(f"{char} at this position")
        return self.written([(ord(char), ord(char))])

    def group(self) -> str:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotSupported("groups nested too deep")
        if self.peek() == "?":
            self.position += 1
            self.group_kind()
        inside = self.alternatives()
        if self.next_char() != ")":
            raise NotSupported("an open (")
        self.depth -= 1
        return f"({inside})"

    def group_kind(self) -> None:
        """Read what follows "(?": a name or ":". Raises NotSupported for look-around and flags."""
        char = self.next_char()
        if char == "P":
            char = self.next_char()
        if char == "<" and self.peek() not in ("=", "!"):
            while self.next_char() != ">":
                pass
        elif char != ":":
            raise NotSupported("look-around or flags")

    def quantified(self, item: str) -> str:
        char = self.peek()
        if char not in ("*", "+", "?", "{"):
            return item
        self.position += 1
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(char) or self.counts()
        if self.peek() in ("?", "+"):
            self.position += 1  # lazy or possessive: the same strings
        return repeat(item, least, most)

    def counts(self) -> tuple[int, int | None]:
        end = self.text.find("}", self.position)
        low, comma, high = self.text[self.position : end].partition(",")
        if end < 0 or not low.isdecimal() or (high and not high.isdecimal()):
            raise NotSupported("a { that is no count")
        self.position = end + 1
        least = int(low[:9])
        most = int(high[:9]) if high else None if comma else least
        if max(least, most or 0) > MAX_COUNT or (most is not None and most < least):
            raise NotSupported(f"a count beyond {MAX_COUNT}")
        return least, most

    def char_set(self) -> Ranges:
        negated = self.peek() == "^"
        self.position += negated
        found: Ranges = []
        first = True
        while first or self.peek() != "]":
            first = False
            low = self.escape() if (char := self.next_char()) == "\\" else [(ord(char), ord(char))]
            if self.peek() == "-" and self.text[self.position + 1 : self.position + 2] not in ("", "]"):
                self.position += 1
                high = self.escape() if (char := self.next_char()) == "\\" else [(ord(char), ord(char))]
                if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][1] < low[0][0]:
                    raise NotSupported("a range that is none")
                found.append((low[0][0], high[0][1]))
            else:
                found += low
        self.position += 1
        return _outside(found) if negated else found

    def escape(self) -> Ranges:
        char = self.next_char()
        if char in _CLASSES:
            return _CLASSES[char]
        if char.lower() in _CLASSES:
            return _outside(_CLASSES[char.lower()])
        if char in "xu":
            return self.code(2 if char == "x" else 4)
        if char in _CONTROLS:
            return [(_CONTROLS[char], _CONTROLS[char])]
        if char.isalnum():
            raise NotSupported(f"\\{char}")
        return [(ord(char), ord(char))]

    def code(self, digits: int) -> Ranges:
        text = self.text[self.position : self.position + digits]
        if len(text) < digits or not all(c in "0123456789abcdefABCDEF" for c in text):
            raise NotSupported("a code that is none")
        self.position += digits
        return [(int(text, 16), int(text, 16))]


def written(ranges: Ranges) -> str:
    """One character of these ranges, as written inside a JSON string. Raises NotSupported if there is none."""
    options = [_WRITTEN[code] for code in _WRITTEN if any(low <= code <= high for low, high in ranges)]
    plain = _merged([part for span in ranges for part in _without(span, [*_NEVER_PLAIN, (0xD800, 0xDFFF)])])
    if plain:
        options.append(char_class(plain))
    if not options:
        raise NotSupported("a character that cannot be written")
    return either(options)


def written_plain(ranges: Ranges) -> str:
    """One character of these ranges as it is."""
    plain = _merged([part for span in ranges for part in _without(span, [(0xD800, 0xDFFF)])])
    if not plain:
        raise NotSupported("a character that cannot be written")
    return literal(chr(plain[0][0])) if plain == [(plain[0][0],) * 2] else char_class(plain)


def _outside(ranges: Ranges) -> Ranges:
    return _without((0, _END), ranges)


def _without(span: tuple[int, int], holes: Ranges) -> Ranges:
    low, high = span
    found = []
    for first, last in sorted(holes):
        if last < low or first > high:
            continue
        if first > low:
            found.append((low, first - 1))
        low = max(low, last + 1)
    return found + ([(low, high)] if low <= high else [])


def _merged(ranges: Ranges) -> Ranges:
    found: Ranges = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found
