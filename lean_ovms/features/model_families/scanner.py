"""Reads a stream of text as if all of it had arrived.

The reading methods are generators that yield whenever they need more text. So a parser is straight code with `yield
from`, without an explicit state machine.

Text that was read leaves the buffer. Only a tail that may still become a tag is kept, so the cost of a chunk depends
only on its own length. Long values are passed on (or collected in a list) piece by piece, and never concatenated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from string import ascii_letters
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""The type of a read in progress, which yields whenever it needs more text, and returns a T."""

Sink = Callable[[str], object]
"""The type of a function that takes text as it is read."""


def ignore(piece: str) -> None:
    """Drops text; it is the Sink for text that is not needed."""


# Each is one character class, so a search is a single pass without backtracking.
_BLANK = re.compile(r"[ \t\r\n]*")
_BETWEEN = re.compile(r"[0-9A-Za-z+\-.:, \t\r\n]*")
_SCALAR = re.compile(r"[0-9A-Za-z+\-.]*")
QUOTES = "\"'"
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_PYTHON_WORD = re.compile(r"(?<![0-9A-Za-z])(?:True|False|None)(?![0-9A-Za-z])")
_LONGEST_WORD = max(map(len, PYTHON_WORDS))
_IN_STRING = {'"': re.compile(r'["\\\x00-\x1f]'), "'": re.compile(r'["\'\\\x00-\x1f]')}
_HEX = re.compile(r"[0-9A-Fa-f]*")
MAX_NAME = 256
"""The most characters of a name or a header. A longer one is no markup, and is not held back."""

_CLOSER = {"{": "}", "[": "]"}
_IN_STRAY = ('"', '\\"', "\\\\")
"""The end of a string, and the escapes that must not be taken for it."""
_CONTROL = {'"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


class Tags:
    """A set of tags that are looked for together. No tag may be a prefix of another one."""

    __slots__ = ("_first", "_prefixes", "all", "longest", "match", "search")

    def __init__(self, tags: Iterable[str]) -> None:
        self.all = tuple(dict.fromkeys(tags))
        assert not any(a != b and b.startswith(a) for a in self.all for b in self.all), self.all
        self.longest = max(map(len, self.all), default=0)
        self._prefixes = frozenset(tag[:end] for tag in self.all for end in range(1, len(tag)))
        never = r"(?!)"
        self._first = re.compile("|".join(sorted({re.escape(tag[0]) for tag in self.all})) or never).search
        pattern = re.compile("|".join(map(re.escape, self.all)) or never)
        self.search, self.match = pattern.search, pattern.match

    def begins(self, text: str) -> bool:
        """Returns whether a text, which may be empty, is a prefix of one of the tags."""
        return not text or text in self._prefixes

    def hold(self, text: str, pos: int) -> int:
        """Returns where the tail of text[pos:] begins that may still become a tag, or len(text) if there is none."""
        at = max(pos, len(text) - self.longest + 1)
        while found := self._first(text, at):
            at = found.start()
            if text[at:] in self._prefixes:
                return at
            at += 1
        return len(text)


_AFTER_STRING = Tags((",", ":", "]", "}"))
"""The marks of which one follows a string in JSON."""


class _Bare:
    """Passes on JSON outside of its strings, and corrects Python's words and commas before a closing bracket."""

    __slots__ = ("_held", "_last", "_sink", "before")

    def __init__(self, sink: Sink) -> None:
        self.before = ""
        """The last character that is not blank."""
        self._sink = sink
        self._held = ""
        """The end of the text, which may be corrected: a comma with a few blanks after it, or a short word."""
        self._last = ""
        """The last character that was passed on; "" after a mark."""

    def add(self, piece: str) -> None:
        """Adds a piece of the text."""
        text = self._held + piece
        written = text.rstrip()
        self.before = written[-1:] or self.before
        if written.endswith(","):
            end, most = len(written) - 1, MAX_NAME
        else:
            end, most = len(text.rstrip(ascii_letters)), _LONGEST_WORD
        if len(text) - end > most:
            end = len(text)
        self._pass_on(text[:end])
        self._held = text[end:]

    def end(self, mark: str) -> None:
        """Ends the text before this mark."""
        held, self._held = self._held, ""
        self._pass_on(held[1:] if held.startswith(",") and mark and mark in "]}" else held)
        self._last = ""

    def _pass_on(self, text: str) -> None:
        if text:
            self._sink(_PYTHON_WORD.sub(lambda word: PYTHON_WORDS[word[0]], self._last + text)[len(self._last) :])
            self._last = text[-1]


class Scanner:
    """The text that has arrived and has not been read, text[pos:], with the methods that read it."""

    __slots__ = ("_kept", "_mark", "ended", "last", "pos", "text")

    def __init__(self) -> None:
        self.text = ""
        self.pos = 0
        self.ended = False
        """Whether no more will arrive."""
        self.last = ""
        """The token that ended the text, or an empty text if no token did."""
        self._kept: list[str] | None = None
        self._mark = 0

    def feed(self, text: str) -> None:
        if self._kept is not None:
            self._kept.append(self.text[self._mark : self.pos])
            self._mark = 0
        self.text = self.text[self.pos :] + text if self.pos < len(self.text) else text
        self.pos = 0

    # A record of the text that was read, so that it can become plain text if it turns out not to be a call.

    def record(self, before: str = "") -> None:
        """Begins to record the text that is read, after text that was read already."""
        self._kept = [before]
        self._mark = self.pos

    def recorded(self) -> str:
        """Ends the record and returns it, or "" if nothing is being recorded."""
        if self._kept is None:
            return ""
        whole = "".join(self._kept) + self.text[self._mark : self.pos]
        self._kept = None
        return whole

    def unread(self) -> None:
        """Ends the record and goes back to where it began."""
        if self._kept == [""]:  # the record began in this chunk, so the text is still there and need not be copied
            self.pos = self._mark
            self._kept = None
            return
        self.text = self.recorded() + self.text[self.pos :]
        self.pos = 0

    def forget(self) -> None:
        """Ends the record and drops it."""
        self._kept = None

    def drop_rest(self) -> None:
        """Ends the record and drops it with all text that has not been read, which is a tag without its end."""
        self._kept = None
        self.pos = len(self.text)

    # Reading.

    def until(self, tags: Tags, sink: Sink) -> Steps[str]:
        """Passes on all text before the next tag, once it cannot be part of one. Returns the tag, or "" at the end."""
        while True:
            text, pos = self.text, self.pos
            if found := tags.search(text, pos):
                if found.start() > pos:
                    sink(text[pos : found.start()])
                self.pos = found.end()
                return found.group()
            end = len(text) if self.ended else tags.hold(text, pos)
            if end > pos:
                sink(text[pos:end])
                self.pos = end
            if self.ended:
                return ""
            yield

    def peek(self) -> Steps[str]:
        """Returns the next character without reading it, or "" at the end."""
        while self.pos == len(self.text) and not self.ended:
            yield
        return self.text[self.pos : self.pos + 1]

    def space(self) -> Steps[str]:
        """Reads white space. Returns the next character without reading it, or "" at the end."""
        while True:
            self.pos = self._match(_BLANK)
            if self.pos < len(self.text):
                return self.text[self.pos]
            if self.ended:
                return ""
            yield

    def ahead(self, tags: Tags, at: int = 0) -> Steps[int]:
        """Looks, without reading, whether one of the tags comes next, after white space.

        It looks `at` characters ahead. Returns the offset of the tag's end from the next character; 0 at the end of the
        text or after more white space than MAX_NAME, and -1 if something else comes.
        """
        while True:
            found = _BLANK.match(self.text, self.pos + at, self.pos + at + MAX_NAME)
            end = found.end() if found else self.pos + at
            if tag := tags.match(self.text, end):
                return tag.end() - self.pos
            if end >= self.pos + at + MAX_NAME or (self.ended and self.text[end:].strip() in ("", self.last)):
                return 0
            if self.ended or not tags.begins(self.text[end:]):
                return -1
            yield

    def ahead_in(self, inside: re.Pattern[str]) -> Steps[str]:
        """Returns, without reading, the character after the text that `inside` (a repeated character class) matches.

        It is "" if `inside` matches nothing, more than MAX_NAME characters, or everything up to the end.
        """
        while True:
            found = inside.match(self.text, self.pos, self.pos + MAX_NAME)
            end = found.end() if found else self.pos
            if end < len(self.text):
                return self.text[end] if self.pos < end < self.pos + MAX_NAME else ""
            if self.ended:
                return ""
            yield

    def literal(self, word: str) -> Steps[bool]:
        """Reads a word if it comes next, and returns whether it did."""
        while True:
            if self.text.startswith(word, self.pos):
                self.pos += len(word)
                return True
            if self.ended or not word.startswith(self.text[self.pos : self.pos + len(word)]):
                return False
            yield

    def head(self, tags: Tags, most: int = MAX_NAME) -> Steps[tuple[str, str]]:
        """Reads a short text and the tag after it, and returns both.

        If the text is longer than `most`, nothing is read, and ("", "") is returned.
        """
        while True:
            pos, limit = self.pos, self.pos + most + tags.longest
            if found := tags.search(self.text, pos, limit):
                self.pos = found.end()
                return self.text[pos : found.start()], found.group()
            if self.ended or len(self.text) >= limit:
                return "", ""
            yield

    def word(self, inside: re.Pattern[str]) -> Steps[str]:
        """Reads and returns the text that `inside` (a repeated character class) matches.

        If it is longer than MAX_NAME, nothing is read, and "" is returned.
        """
        while True:
            pos = self.pos
            found = inside.match(self.text, pos, pos + MAX_NAME + 1)
            end = found.end() if found else pos
            if end > pos + MAX_NAME:
                return ""
            if end < len(self.text) or self.ended:
                self.pos = end
                return self.text[pos:end]
            yield

    def run(self, inside: re.Pattern[str], sink: Sink) -> Steps[str]:
        """Passes on all up to the first character that is not in the class `inside`, and returns that character."""
        while True:
            end = self._match(inside)
            if end > self.pos:
                sink(self.text[self.pos : end])
                self.pos = end
            if end < len(self.text):
                return self.text[end]
            if self.ended:
                return ""
            yield

    def json_value(self, sink: Sink, stray: Sink | None = None, tags: Tags | None = None) -> Steps[bool]:
        """Passes on one JSON value while it arrives. Returns False if it breaks off, at the end or before invalid JSON.

        White space stays as it is. In strings, raw control characters and wrong escapes are corrected. What is written
        as in Python (True, None, 'text', a comma before a closing bracket) becomes JSON.

        Args:
            sink: Gets the text of the value.
            stray: Gets the text after a quote that is not escaped, and so ends a string too early; `sink` if None.
            tags: The tags before which such text ends. It may have an odd number of quotes, so that the tag at the end
                of the value seems to be in a string.
        """
        first = yield from self.space()
        if first and first in QUOTES:
            return (yield from self.json_string(sink))
        if first not in _CLOSER:
            return (yield from self._json_scalar(sink))
        return (yield from self._json_container(sink, stray or sink, tags))

    def _json_container(self, sink: Sink, stray: Sink, tags: Tags | None) -> Steps[bool]:
        """Passes on an object or a list, given the arguments of `json_value`."""
        closers: list[str] = []
        marks: Tags | None = None
        bare = _Bare(sink)
        while True:
            mark = yield from self.run(_BETWEEN, bare.add if marks is None else sink)
            bare.end(mark)
            if mark == '"' or (mark == "'" and bare.before in "{[,:" and marks is None):
                bare.before = mark
                if not (yield from self.json_string(sink) if marks is None else self._stray_string(sink, marks)):
                    return False
                if tags is not None and marks is None:
                    after = yield from self.run(_BLANK, sink)
                    if after and after not in ",:]}":
                        sink, marks = stray, Tags((*tags.all, *_IN_STRAY))
                continue
            if mark in _CLOSER:
                closers.append(_CLOSER[mark])
            elif not mark or mark != closers.pop():
                return False
            sink(mark)
            bare.before = mark
            self.pos += 1
            if not closers:
                return True

    def _json_scalar(self, sink: Sink) -> Steps[bool]:
        some = False

        def seen(piece: str) -> None:
            nonlocal some
            some = True
            sink(piece)

        yield from self.run(_SCALAR, seen)
        return some

    def json_string(self, sink: Sink) -> Steps[bool]:
        """Passes on one JSON string, whose quote comes next, as it is written. Returns False if it breaks off.

        A string between single quotes, as in Python, becomes a JSON string. An unescaped quote ends it only if a comma,
        a colon or a closing bracket follows.
        """
        quote = self.text[self.pos]
        inside = _IN_STRING[quote]
        sink('"')
        self.pos += 1
        while True:
            text, pos = self.text, self.pos
            found = inside.search(text, pos)
            end = found.start() if found else len(text)
            if end > pos:
                sink(text[pos:end])
                self.pos = end
            if found is None:
                if self.ended:
                    return False
                yield
            elif (mark := text[end]) == "\\":
                sink((yield from self._escape(quote)))
            elif mark == quote and (quote == '"' or (yield from self.ahead(_AFTER_STRING, 1)) >= 0):
                sink('"')
                self.pos += 1
                return True
            else:
                sink(mark if mark == "'" else _CONTROL.get(mark) or f"\\u{ord(mark):04x}")
                self.pos += 1

    def _stray_string(self, sink: Sink, marks: Tags) -> Steps[bool]:
        """Passes on text from a quote to the next one. Returns False if another mark than _IN_STRAY comes before."""
        sink('"')
        self.pos += 1
        while (mark := (yield from self.until(marks, sink))) in _IN_STRAY:
            sink(mark)
            if mark == '"':
                return True
        self.pos -= len(mark)
        return False

    def _escape(self, quote: str) -> Steps[str]:
        """Reads one backslash escape in a string between these quotes. In a wrong one, the backslash is escaped."""
        while len(self.text) < self.pos + 2 and not self.ended:
            yield
        pair = self.text[self.pos : self.pos + 2]
        if pair == "\\'" and quote == "'":
            self.pos += 2
            return quote
        if pair == "\\u":
            while len(self.text) < self.pos + 6 and not self.ended:
                yield
            digits = _HEX.match(self.text, self.pos + 2, self.pos + 6)
            if digits and len(digits.group()) == 4:
                pair += digits.group()
        if len(pair) == 6 or (len(pair) == 2 and pair[1] in '"\\/bfnrt'):
            self.pos += len(pair)
            return pair
        self.pos += 1
        return "\\" if len(pair) == 1 else "\\\\"

    def _match(self, pattern: re.Pattern[str]) -> int:
        found = pattern.match(self.text, self.pos)
        return found.end() if found else self.pos
