"""Converts a stream of Python literals to JSON text: strings, numbers, lists, tuples, sets, dicts, True, False, None.

Nothing is evaluated, and there is no recursion. A string with unescaped quotes ('it's') ends at the quote after which
something follows that may follow a value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import orjson

from .scanner import PYTHON_WORDS, Scanner, Sink, Steps

MAX_DEPTH = 256
AHEAD = 96
"""The most characters after a quote that are read to decide whether it ends the string."""

_IN_STRING = {quote: re.compile(rf"[{quote}\\]") for quote in "'\""}
_WORD = re.compile(r"[0-9A-Za-z_+\-.]*")
_DICT, _SET = "}}", "}]"
_OPENERS = {"[": "]]", "(": ")]", "{": _DICT}
"""For each opening bracket the one that closes it, and the one that closes it in JSON."""
_WORDS = {**PYTHON_WORDS, **{word: word for word in PYTHON_WORDS.values()}}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


class Literals:
    """Reads literals from a scanner and passes on their JSON text."""

    def __init__(self, scanner: Scanner, sink: Sink, decode: Callable[[str], str]) -> None:
        """Begins at the position of the scanner.

        Args:
            scanner: The scanner of the text.
            sink: Gets the JSON text.
            decode: Returns the text of a string literal, given the characters between its quotes.
        """
        self.scanner = scanner
        self.sink = sink
        self.decode = decode

    def value(self, *, positional: bool = False) -> Steps[bool]:
        """Reads a literal. Returns whether it was complete. If `positional`, others may follow it besides key=value."""
        closers: list[str] = []
        need = "value"
        while True:
            mark = yield from self.scanner.space()
            key = need == "key"
            if closers and mark == closers[-1][0] and need != "value":
                key = False  # empty brackets, or a comma in front of the closing one
            elif mark in _OPENERS and len(closers) < MAX_DEPTH and not key:
                self.scanner.pos += 1
                need = yield from self._open(mark, closers)
                if need != "read":
                    continue
            elif mark in _IN_STRING:
                follow = _follows(":" if key else "," + closers[-1][0]) if closers else _FOLLOW[positional]
                if not (yield from self._string(mark, follow, self.sink)):
                    return False
            elif not (yield from self._word(key)):
                return False
            need = yield from self._after(closers, key)
            if not need:
                return not closers

    def _open(self, mark: str, closers: list[str]) -> Steps[str]:
        """Reads after an opening bracket. Returns "value" after a dict's first key, "read" after a set's element."""
        closers.append(_OPENERS[mark])
        if mark != "{":
            self.sink("[")
            return "item"
        mark = yield from self.scanner.space()
        if mark in _IN_STRING:
            pieces: list[str] = []
            whole = yield from self._string(mark, _follows(":,}"), pieces.append)
            element = key = "".join(pieces)
        else:
            word = yield from self._bare()
            key = json.dumps(word, ensure_ascii=False)
            element = number_or_word(word) or key
            if not word:
                self.sink("{")
                return "key"
            whole = True
        after = yield from self.scanner.space()
        if whole and after and after in ",}":
            closers[-1] = _SET
            self.sink("[" + element)
            return "read"
        self.sink("{" + key)
        if not whole or after != ":":
            return "read"  # the text ends here
        self.scanner.pos += 1
        self.sink(":")
        return "value"

    def _after(self, closers: list[str], key: bool) -> Steps[str]:
        """Reads the text after a key or a value. Returns what must come next, or "" if nothing can."""
        while closers:
            mark = yield from self.scanner.space()
            if key:
                if mark != ":":
                    return ""
                self.scanner.pos += 1
                self.sink(":")
                return "value"
            if mark == closers[-1][0]:
                self.scanner.pos += 1
                self.sink(closers.pop()[1])
            elif mark == ",":
                self.scanner.pos += 1
                if (yield from self.scanner.space()) != closers[-1][0]:
                    self.sink(",")
                    return "key" if closers[-1] == _DICT else "item"
            else:
                return ""
        return ""

    def _word(self, key: bool) -> Steps[bool]:
        """Reads a number or a word; as a key it becomes a string."""
        word = yield from self._bare()
        if not word:
            return False
        text = None if key else number_or_word(word)
        self.sink(json.dumps(word, ensure_ascii=False) if text is None else text)
        return True

    def _bare(self) -> Steps[str]:
        pieces: list[str] = []
        yield from self.scanner.run(_WORD, pieces.append)
        return "".join(pieces)

    def _string(self, quote: str, follow: Callable[[str], bool | None], sink: Sink) -> Steps[bool]:
        self.scanner.pos += 1
        pieces: list[str] = []
        whole = yield from self._inside(quote, follow, pieces.append)
        text = json.dumps(self.decode("".join(pieces)), ensure_ascii=False)
        sink(text if whole else text[:-1])
        return whole

    def _inside(self, quote: str, follow: Callable[[str], bool | None], sink: Sink) -> Steps[bool]:
        """Passes on the raw characters of a string, up to the quote that ends it."""
        scanner = self.scanner
        while True:
            found = _IN_STRING[quote].search(scanner.text, scanner.pos)
            end = found.start() if found else len(scanner.text)
            sink(scanner.text[scanner.pos : end])
            scanner.pos = end
            if found is None:
                if scanner.ended:
                    return False
                yield
            elif scanner.text[end] == "\\":
                while len(scanner.text) < scanner.pos + 2 and not scanner.ended:
                    yield
                sink(scanner.text[scanner.pos : scanner.pos + 2])
                scanner.pos = min(scanner.pos + 2, len(scanner.text))
            elif (yield from self._ends(follow)):
                scanner.pos += 1
                return True
            else:
                sink(quote)
                scanner.pos += 1

    def _ends(self, follow: Callable[[str], bool | None]) -> Steps[bool]:
        """Returns whether the next quote ends the string, judged by the text after it."""
        while True:
            after = self.scanner.text[self.scanner.pos + 1 : self.scanner.pos + 1 + AHEAD]
            decided = follow(after)
            if decided is not None:
                return decided
            if self.scanner.ended or len(after) == AHEAD:
                return self.scanner.ended
            yield


def _follows(marks: str) -> Callable[[str], bool | None]:
    def follow(after: str) -> bool | None:
        rest = after.lstrip()
        return rest[0] in marks if rest else None

    return follow


def _follows_argument(after: str) -> bool | None:
    """Returns whether the text after a quote may follow an argument's value, or None if more text is needed."""
    rest = after.lstrip()
    if not rest:
        return None
    if rest[0] == ")":
        tail = rest[1:].lstrip()
        return (tail[0] in ",]<" or "\n" in rest[: len(rest) - len(tail)]) if tail else None
    if rest[0] == "]":  # the call's closing bracket is missing, which is accepted only at the end of the text
        tail = rest[1:].lstrip()
        return tail[0] == "<" if tail else None
    if rest[0] != ",":
        return False
    word, equals, _ = rest[1:].partition("=")
    word = word.strip()
    if equals:
        return word.isidentifier()
    return None if not word or word.isidentifier() else False


_FOLLOW = {False: _follows_argument, True: _follows(",)")}


def number_or_word(word: str) -> str | None:
    """Converts a bare word to JSON text. Returns None if it is not a literal."""
    if word in _WORDS:
        return _WORDS[word]
    try:
        orjson.loads(word)
    except orjson.JSONDecodeError:
        return _python_number(word)
    return word


def _python_number(word: str) -> str | None:
    """Converts a number that only Python writes so, such as 1_000, 0x1f, .5, 5., +5, to JSON text, or returns None."""
    if len(word) > 64:
        return None
    for read in (lambda w: int(w, 0), float):
        try:
            text = json.dumps(read(word), allow_nan=False)
        except (ValueError, OverflowError):
            continue
        return text
    return None


def python_text(raw: str) -> str:
    """Decodes the inside of a Python string literal. Escapes that Python does not know stay as they are."""
    if "\\" not in raw:
        return raw
    parts = raw.split("\\")
    out = [parts[0]]
    rest = iter(parts[1:])
    for part in rest:
        if not part:  # an escaped backslash; the part after it is not an escape sequence
            out.append("\\" + next(rest, ""))
        else:
            out.append(_unescaped(part))
    return "".join(out)


def _unescaped(part: str) -> str:
    mark = part[0]
    if mark in _ESCAPES:
        return _ESCAPES[mark] + part[1:]
    if mark in "'\"":
        return part
    if size := _HEX_DIGITS.get(mark):
        digits = part[1 : 1 + size]
        if len(digits) == size and all(d in "0123456789abcdefABCDEF" for d in digits):
            code = int(digits, 16)
            if code < 0xD800 or 0xDFFF < code < 0x110000:
                return chr(code) + part[1 + size :]
    return "\\" + part


def lenient_text(raw: str) -> str:
    """Decodes the inside of a string as JSON if that is valid, else leaves it as it is (OVMS's rule for LFM2)."""
    if "\\" not in raw:
        return raw
    try:
        text: str = orjson.loads('"' + raw.replace("\\'", "'") + '"')
    except orjson.JSONDecodeError:
        return raw
    return text


def literal_to_json(text: str) -> str | None:
    """Converts a whole Python literal to JSON text. Returns None if it is not one."""
    scanner = Scanner()
    scanner.feed(text)
    scanner.ended = True
    pieces: list[str] = []
    steps = Literals(scanner, pieces.append, python_text).value()
    try:
        while True:
            next(steps)
    except StopIteration as done:
        whole = done.value and scanner.pos == len(text)
    return "".join(pieces) if whole else None
