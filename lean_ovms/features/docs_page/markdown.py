"""Converts the Markdown of the documentation to HTML, and collects its sections for the search.

It reads headings, paragraphs, lists, tables, fenced code, and inline code, emphasis and links; everything else is text.
All text is escaped, so nothing but these elements can be in the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import escape

HEADING = re.compile(r"(#{1,6}) +(.+?)(?: +#+)?")
FENCE = re.compile(r"( *)```([\w+-]*) *")
ITEM = re.compile(r"( *)(?:[-*]|\d+\.) +(.*)")
RULE = re.compile(r"\|?[ :|-]*-[ :|-]*")
CELL = re.compile(r"(?<!\\)\|")
MARK = re.compile(
    r"(?P<ticks>`+)(?P<code>.+?)(?P=ticks)(?!`)"
    r"|!\[[^\]]*\]\([^)]*\)"
    r"|\[(?P<text>(?:[^\[\]]|`[^`]*`)+)\]\((?P<to>[^)\s]+)\)"
    r"|\*\*(?P<strong>.+?)\*\*"
    r"|(?<!\w)_(?P<em>[^_]+)_(?!\w)"
    r"|\\(?P<escaped>[\\`*_{}\[\]()#+.!|-])"
)
COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)

Resolve = Callable[[str], str | None]
"""Returns the address of what a link leads to; None if it leads to nothing that is served."""


@dataclass(slots=True)
class Section:
    """A heading, and the text that follows it."""

    title: str
    """The heading's text."""
    anchor: str
    """The id of the heading."""
    text: list[str] = field(default_factory=list)
    """The lines, without Markdown's marks."""


@dataclass(slots=True)
class Document:
    """A document that was converted."""

    html: str
    """The elements of the document."""
    sections: list[Section]
    """The sections, in their order; the first one has the title of the document."""


def read(text: str, resolve: Resolve) -> Document:
    """Converts a document in Markdown; `resolve` returns the address to which one of its links leads."""
    reader = _Reader(resolve)
    html = "".join(reader.blocks(COMMENT.sub("", text).splitlines()))
    return Document(html, reader.sections)


def anchor_of(title: str) -> str:
    """Returns the id of a heading by GitHub's rules."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def plain(text: str) -> str:
    """Returns a line without Markdown's marks."""
    return MARK.sub(lambda found: next((part for part in _parts(found) if part is not None), ""), text)


def _parts(found: re.Match[str]) -> tuple[str | None, ...]:
    inner = found["text"] or found["strong"] or found["em"]
    return (found["code"], None if inner is None else plain(inner), found["escaped"])


def _first(lines: list[str], at: int, ends: Callable[[int], bool]) -> int:
    """Returns the index of the first line from `at` on at which a block ends, or the number of lines."""
    return next((place for place in range(at, len(lines)) if ends(place)), len(lines))


class _Reader:
    """Reads the blocks of one document."""

    def __init__(self, resolve: Resolve) -> None:
        self.sections: list[Section] = []
        self._resolve = resolve
        self._anchors: dict[str, int] = {}

    def blocks(self, lines: list[str]) -> Iterator[str]:
        """Yields the elements of lines."""
        at = 0
        while at < len(lines):
            html, at = self._block(lines, at)
            yield html

    def _block(self, lines: list[str], at: int) -> tuple[str, int]:
        """Returns the block that begins at a line as HTML, and the index at which the next one begins."""
        line = lines[at]
        if not line.strip():
            return "", at + 1
        if found := FENCE.fullmatch(line):
            end = _first(lines, at + 1, lambda place: lines[place].strip() == "```")
            return self._code([one.removeprefix(found[1]) for one in lines[at + 1 : end]]), end + 1
        if found := HEADING.fullmatch(line):
            return self._heading(len(found[1]), found[2]), at + 1
        if line.startswith("|") and at + 1 < len(lines) and RULE.fullmatch(lines[at + 1]):
            end = _first(lines, at + 2, lambda place: not lines[place].startswith("|"))
            return self._table([line, *lines[at + 2 : end]]), end
        if ITEM.fullmatch(line):
            end = _first(lines, at + 1, lambda place: not self._is_of_list(lines, place))
            return self._list(lines[at:end], ordered=line.lstrip()[0].isdigit()), end
        end = _first(lines, at + 1, lambda place: not lines[place].strip() or self._begins(lines[place]))
        return f"<p>{self._line(' '.join(map(str.strip, lines[at:end])))}</p>\n", end

    def _begins(self, line: str) -> bool:
        """Returns whether a line begins a new block, and so ends a paragraph before it."""
        return any(form.fullmatch(line) for form in (HEADING, FENCE, ITEM)) or line.startswith("|")

    def _is_of_list(self, lines: list[str], at: int) -> bool:
        """Returns whether a line is part of the list above it: an item, an indented line, or a continued item."""
        line = lines[at]
        if not line.strip():
            return at + 1 < len(lines) and bool(re.match(r"  +\S|[-*] |\d+\. ", lines[at + 1]))
        return line.startswith("  ") or bool(ITEM.fullmatch(line)) or (bool(lines[at - 1]) and not self._begins(line))

    def _heading(self, level: int, title: str) -> str:
        anchor = anchor_of(title)
        count = self._anchors[anchor] = self._anchors.get(anchor, -1) + 1
        anchor = f"{anchor}-{count}" if count else anchor
        self.sections.append(Section(plain(title), anchor))
        return f'<h{level} id="{escape(anchor)}">{self._inline(title)}</h{level}>\n'

    def _code(self, lines: list[str]) -> str:
        self._keep("\n".join(lines))
        return f'<pre tabindex="0"><code>{escape(chr(10).join(lines))}</code></pre>\n'

    def _table(self, lines: list[str]) -> str:
        head, *rows = ([cell.strip() for cell in CELL.split(line.strip().strip("|"))] for line in lines)
        titles = (f'<th scope="col">{self._line(cell)}</th>' if cell else "<td></td>" for cell in head)
        body = "".join(f"<tr>{''.join(f'<td>{self._line(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
        top = f"<thead><tr>{''.join(titles)}</tr></thead>" if any(head) else ""
        return f'<div class="table" tabindex="0"><table>{top}<tbody>{body}</tbody></table></div>\n'

    def _list(self, lines: list[str], *, ordered: bool) -> str:
        indent = len(lines[0]) - len(lines[0].lstrip())
        items: list[list[str]] = []
        for line in lines:
            found = ITEM.fullmatch(line)
            if found and len(found[1]) <= indent:
                items.append([found[2]])
            else:
                items[-1].append(line)
        tag = "ol" if ordered else "ul"
        return f"<{tag}>{''.join(f'<li>{self._item(item)}</li>{chr(10)}' for item in items)}</{tag}>\n"

    def _item(self, lines: list[str]) -> str:
        """Renders an item of a list as HTML. The first paragraph has no element of its own; later blocks have."""
        end = 1
        while end < len(lines) and lines[end].strip() and not self._begins(lines[end].strip()):
            end += 1
        rest = lines[end:]
        cut = min((len(line) - len(line.lstrip()) for line in rest if line.strip()), default=0)
        first = self._line(" ".join(map(str.strip, lines[:end])))
        return first + "".join(self.blocks([line[cut:] for line in rest]))

    def _line(self, text: str) -> str:
        """Renders a line as HTML, and adds its text to the current section."""
        self._keep(plain(text))
        return self._inline(text)

    def _keep(self, text: str) -> None:
        if self.sections:
            self.sections[-1].text.append(text)

    def _inline(self, text: str) -> str:
        parts, at = [], 0
        for found in MARK.finditer(text):
            parts += [escape(text[at : found.start()], quote=False), self._mark(found)]
            at = found.end()
        return "".join(parts) + escape(text[at:], quote=False)

    def _mark(self, found: re.Match[str]) -> str:
        if found["code"] is not None:
            return f"<code>{escape(found['code'].replace(chr(92) + '|', '|'), quote=False)}</code>"
        if found["text"] is not None:
            inner = self._inline(found["text"])
            address = self._resolve(found["to"])
            return inner if address is None else f'<a href="{escape(address)}">{inner}</a>'
        if found["strong"] is not None:
            return f"<strong>{self._inline(found['strong'])}</strong>"
        if found["em"] is not None:
            return f"<em>{self._inline(found['em'])}</em>"
        return escape(found["escaped"] or "", quote=False)
