"""GET /docs/ and /docs/{id}: the documentation in docs/ and in the folders of the features, with a search.

The pages have no script, and load nothing from other hosts. In a wheel, the files of docs/ are beside this module
(setup.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from posixpath import normpath
from string import Template

from ...api.fields import Field, FieldSet, RouteDoc
from ...api.queries import read_query
from ...api.services import Services
from ...errors import BadRequest, NotFound, counted
from ...types import Request, Response
from .content_security import hash_of
from .markdown import Document, Section, plain, read

HERE = Path(__file__).parent
FEATURES = HERE.parent
START, SEARCH = "", "search"
"""The ids of the page to begin with, and of the search."""
WEB = ("https://", "http://", "mailto:")
ELSE = "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
"""Further restrictions in the content security policy of the pages."""
MOST_FOUND = 40
"""The sections that a search shows."""
BEFORE, AFTER = 60, 200
"""The characters around the first word that is found."""
IN_TITLE, IN_HEADING = 6, 10
"""The weight of a word in the title of a page, and in the heading of a section; in the text it is 1."""
MOST_WORDS = 32
"""The most words of a search. All sections are searched for each word, which takes 1 ms."""


def _few_words(text: str) -> str:
    if len(text.split()) > MOST_WORDS:
        raise BadRequest(f"q must have at most {MOST_WORDS} words", param="q")
    return text


QUERY = FieldSet((
    Field("q", "string", f"up to {MOST_WORDS} words that a section must contain", default="", read=_few_words),
))  # fmt: skip


@RouteDoc("The documentation", answer="text/html")
async def handle_start(request: Request, services: Services) -> Response:
    return _html(await services.offload.run(0, lambda: _shown(START)))


@RouteDoc("A page of the documentation", answer="text/html", errors=(404,))
async def handle_page(request: Request, services: Services) -> Response:
    [name] = request.ids
    return _html(await services.offload.run(0, lambda: _shown(name)))


@RouteDoc("The sections of the documentation that contain these words", query=QUERY, answer="text/html")
async def handle_search(request: Request, services: Services) -> Response:
    words: str = read_query(QUERY, request.query)["q"]
    return _html(await services.offload.run(0, lambda: _found(words)))


def _html(text: str) -> Response:
    _, safety = _frame()
    headers = [("Content-Type", "text/html; charset=utf-8"), ("Content-Security-Policy", safety)]
    return Response(200, headers, text.encode())


@dataclass(frozen=True, slots=True)
class Group:
    """A group of pages, which are in one table of the index."""

    title: str
    """The title of the group."""
    pages: tuple[tuple[str, str], ...]
    """The id and the name of each page."""


@cache
def files() -> dict[str, Path]:
    """Returns the files of the pages by their ids: those of docs/, and those of the features."""
    copied = HERE / "docs"
    docs = copied if copied.is_dir() else FEATURES.parents[1] / "docs"
    found = {path.relative_to(docs).as_posix(): path for path in sorted(docs.rglob("*.md"))}
    pages = {name.removesuffix(".md").removesuffix("README").rstrip("/"): path for name, path in found.items()}
    return pages | {f"features/{path.parent.name}": path for path in sorted(FEATURES.glob("*/README.md"))}


@cache
def page(name: str) -> Document:
    """Reads the page with an id. Raises NotFound."""
    path = files().get(name)
    if path is None:
        raise NotFound("there is no such page in the documentation")
    return read(path.read_text("utf-8"), lambda to: _address(name, to))


@cache
def _title(name: str) -> str:
    """Returns the title of a page, which is its first line."""
    with files()[name].open(encoding="utf-8") as lines:
        return plain(next(lines).strip("# \n"))


def _place(name: str) -> str:
    """Returns the place of a page in the source, below which its links are relative."""
    if name.startswith("features/"):
        return f"lean_ovms/{name}"
    return f"docs/{name}" if files()[name].name == "README.md" else "docs"


def _address(name: str, to: str) -> str | None:
    """Resolves a link of a page: to a relative address of another page, to a URL, or to None if it leads nowhere."""
    if to.startswith(WEB) or to.startswith("#"):
        return to
    path, mark, anchor = to.partition("#")
    place = normpath(f"{_place(name)}/{path}")
    for known, prefix in (("lean_ovms/features/", "features/"), ("docs/", "")):
        if place.startswith(known) and place.endswith(".md"):
            other = prefix + place.removeprefix(known).removesuffix(".md").removesuffix("README").rstrip("/")
            return up(name) + other + mark + anchor if other in files() else None
    return None


def up(name: str) -> str:
    """Returns the relative address of the start page, seen from a page."""
    return "../" * name.count("/") or "./"


@cache
def groups() -> tuple[Group, ...]:
    """Returns the pages in the groups of the index, each once."""
    found: list[Group] = []
    tables = re.findall(r"<table>(.*?)</table>", page(START).html, re.DOTALL)
    for table in tables:
        title = re.search(r"<th [^>]*>(.*?)</th>", table)
        cells = re.findall(r"<tr><td>(.*?)</td>", table)
        links = re.findall(r'<a href="\./([\w/]+)">(.*?)</a>', " ".join(cells))
        if title and links:
            found.append(Group(_capital(title[1]), tuple((name, _name_of(name, text)) for name, text in links)))
    return tuple(found)


def _name_of(name: str, link: str) -> str:
    """Returns the name of a page in the list: the text of the link to it, or its title if that text is a file name."""
    return escape(_title(name)) if link.endswith(".md") else _capital(link)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


@cache
def _frame() -> tuple[Template, str]:
    """Returns the template around every page, and the content security policy, which allows only its style."""
    page = (HERE / "guide.html").read_bytes()
    return Template(page.decode()), f"default-src 'none'; style-src {hash_of('style', page)}; {ELSE}"


def _framed(name: str, title: str, content: str, query: str = "") -> str:
    """Renders a page as HTML.

    Args:
        name: The id of the page, to which addresses are relative.
        title: The title of the page, as text.
        content: The elements of the page, as HTML.
        query: The words in the search field.
    """
    root = up(name)
    parts = []
    for group in groups():
        links = "".join(
            f'<li><a href="{root}{escape(one)}"{" aria-current=page" if one == name else ""}>{text}</a></li>'
            for one, text in group.pages
        )
        parts.append(f"<p>{group.title}</p><ul>{links}</ul>")
    frame, _ = _frame()
    return frame.substitute(root=root, title=escape(title), pages="".join(parts), content=content, query=escape(query))


@cache
def _shown(name: str) -> str:
    """Renders the page with an id as HTML. Raises NotFound."""
    document = page(name)
    return _framed(name, _title(name), document.html)


def _found(text: str) -> str:
    """Renders the page with the results of a search as HTML."""
    words = text.lower().split()
    ranked = search(words) if words else []
    rows = [
        f'<li><a href="{up(SEARCH)}{escape(name)}#{escape(section.anchor)}">{escape(_name(name, section))}</a>'
        f"<p>{_excerpt(section, words)}</p></li>"
        for name, section in ranked[:MOST_FOUND]
    ]
    about = "No section contains all of these words." if words else ""
    if ranked:
        about = f"{counted(len(ranked), 'section contains', 'sections contain')} all of these words."
    if len(ranked) > MOST_FOUND:
        about += f" The first {MOST_FOUND} are shown."
    content = f'<h1>Search</h1><p role="status">{about}</p><ol class="found">{"".join(rows)}</ol>'
    return _framed(SEARCH, "Search", content, text)


def _name(name: str, section: Section) -> str:
    title = _title(name)
    return title if section.title == title else f"{title}: {section.title}"


def search(words: Sequence[str]) -> list[tuple[str, Section]]:
    """Returns the sections that contain all words, which are in lower case, with the ids of their pages, best first."""
    found: list[tuple[int, str, Section]] = []
    for name in files():
        title = _title(name).lower()
        for section in page(name).sections:
            heading = section.title.lower()
            text = "\n".join(section.text).lower()
            counts = [
                IN_TITLE * (word in title) + IN_HEADING * (word in heading) + min(text.count(word), IN_TITLE)
                for word in words
            ]
            if all(counts) and any(word in heading or word in text for word in words):
                found.append((sum(counts), name, section))
    found.sort(key=lambda one: -one[0])
    return [(name, section) for _, name, section in found]


def _excerpt(section: Section, words: Sequence[str]) -> str:
    """Returns the text around the first found word as HTML, with all words marked."""
    text = " ".join(section.text).replace("\n", " ")
    found = re.search("|".join(map(re.escape, words)), text, re.IGNORECASE)
    begin = max(0, found.start() - BEFORE) if found else 0
    shown = text[begin : begin + BEFORE + AFTER]
    parts = re.split(f"({'|'.join(map(re.escape, words))})", shown, flags=re.IGNORECASE)
    marked = "".join(f"<mark>{escape(part)}</mark>" if place % 2 else escape(part) for place, part in enumerate(parts))
    return f"{'… ' if begin else ''}{marked}{' …' if begin + len(shown) < len(text) else ''}"
