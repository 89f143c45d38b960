"""The documentation that a server contains: all pages and links, and the search."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from posixpath import normpath
from urllib.parse import urlencode

import orjson
import pytest

from lean_ovms.composition import compose
from lean_ovms.features.docs_page import guide
from lean_ovms.features.docs_page.markdown import read
from lean_ovms.types import Request, Response
from tests.api.conftest import MakeApp, get

ROOT = Path(__file__).parents[3]


def text_of(response: Response) -> str:
    assert isinstance(response.body, bytes)
    return response.body.decode()


def links(name: str) -> list[str]:
    """Returns the targets of all links on a page and in its frame, relative to /docs/."""
    found = re.findall(r'href="([^"]*)"', guide._shown(name))
    here = f"docs/{name}"
    inside = [unescape(to) for to in found if not to.startswith(guide.WEB)]
    return [
        f"{here}{to}" if to.startswith("#") else normpath(f"{here.rpartition('/')[0]}/{to}").removeprefix("./")
        for to in inside
    ]


@pytest.mark.slow
def test_every_link_leads_to_a_page_and_a_heading_that_are_there() -> None:
    ids = {name: set(re.findall(r' id="([^"]*)"', guide._shown(name))) for name in guide.files()}
    for name in guide.files():
        for to in links(name):
            place, _, anchor = to.partition("#")
            if place == "docs":  # the description of the API, next to the index
                continue
            other = place.removeprefix("docs/")
            assert other in ids, f"{name} links {to}"
            assert not anchor or anchor in ids[other], f"{name} links {to}"


def test_every_page_of_the_documentation_is_there_and_in_the_list() -> None:
    names = set(guide.files())
    assert {"", "how_to", "deploy", "features/chat", "features/docs_page"} <= names
    assert len(names) == len([*(ROOT / "docs").rglob("*.md"), *(ROOT / "lean_ovms/features").glob("*/README.md")])
    listed = [name for group in guide.groups() for name, _ in group.pages]
    assert len(listed) == len({*listed})
    assert names - {*listed} == {""}
    assert dict(guide.groups()[0].pages)["how_to"] == "How do I …"


@pytest.mark.parametrize("path", ["/docs/", "/docs/how_to", "/docs/features/terminal", "/docs/search?q="])
async def test_pages_need_no_script_and_no_key(make_app: MakeApp, path: str) -> None:
    app, _ = await make_app(api_key="secret", protect_models=True)
    path, _, query = path.partition("?")
    response = await app.handle(Request("GET", path, query))
    assert response.status == 200
    headers = dict(response.headers)
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "script" not in headers["Content-Security-Policy"]
    assert "<script" not in text_of(response)
    assert 'aria-label="Search the documentation"' in text_of(response)


@pytest.mark.parametrize("path", ["/docs/nothing", "/docs/../SECURITY", "/docs/features/nothing", "/docs/how_to.md"])
async def test_other_pages_are_a_404(make_app: MakeApp, path: str) -> None:
    app, _ = await make_app()
    assert (await get(app, path)).status == 404


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "page"), [("limit memory", "options"), ("GGUF", "features/gguf"), ("tool_server", "features/mcp")]
)
def test_the_section_that_is_about_the_words_is_found(words: str, page: str) -> None:
    assert page in [name for name, _ in guide.search(words.lower().split())][:3]


@pytest.mark.slow
async def test_what_is_searched_for_stays_text(make_app: MakeApp) -> None:
    app, _ = await make_app()
    shown = text_of(await app.handle(Request("GET", "/docs/search", "q=%3Cb%3E%22x")))
    assert "No section contains all of these words." in shown
    assert 'value="&lt;b&gt;&quot;x"' in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status"),
    [("", ""), ("lean_ovms.ray_serve:proxy_middlewares", "1 section contains all of these words."),
     ("the", r"\d+ sections contain all of these words. The first 40 are shown.")],
)  # fmt: skip
async def test_the_number_of_sections_is_shown(make_app: MakeApp, words: str, status: str) -> None:
    app, _ = await make_app()
    shown = text_of(await app.handle(Request("GET", "/docs/search", urlencode({"q": words}))))
    found = re.search(r'<p role="status">(.*?)</p>', shown)
    assert found is not None
    assert re.fullmatch(status, found[1])


async def test_a_search_for_many_words_is_refused(make_app: MakeApp) -> None:
    app, _ = await make_app()
    many = urlencode({"q": "a " * (guide.MOST_WORDS + 1)})
    response = await app.handle(Request("GET", "/docs/search", many))
    error = orjson.loads(text_of(response))["error"]
    assert (response.status, error["param"]) == (400, "q")
    assert str(guide.MOST_WORDS) in error["message"]


LISTED = """
from lean_ovms.features.docs_page import guide
print(len(guide.files()), guide.HERE, len(guide._shown("how_to")))
"""


@pytest.mark.slow
def test_an_installed_package_has_every_page(tmp_path: Path) -> None:
    build = [sys.executable, "-W", "ignore", "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    printed = subprocess.run([sys.executable, "-c", LISTED], cwd=tmp_path, check=True, capture_output=True, text=True)
    pages, folder, length = printed.stdout.split()
    assert (int(pages), folder) == (len(guide.files()), str(tmp_path / "lean_ovms/features/docs_page"))
    assert int(length) == len(guide._shown("how_to"))


def test_nothing_of_it_is_in_a_server_without_the_feature() -> None:
    assert not [row.path for row in compose("docs_page").routes if row.path.startswith("/docs")]


MARKDOWN = {
    "# A `b` c": '<h1 id="a-b-c">A <code>b</code> c</h1>',
    "a **b _c_** [d](x.md) `[e](y)`": "<p>a <strong>b <em>c</em></strong> d <code>[e](y)</code></p>",
    "a_b_c 2 * 3 \\* <b>": "<p>a_b_c 2 * 3 * &lt;b&gt;</p>",
    "[`a`](#x)": '<p><a href="#x"><code>a</code></a></p>',
    "a\nb\n\nc": "<p>a b</p>\n<p>c</p>",
    "- a\n  b\n- c\n  - d": "<ul><li>a b</li>\n<li>c<ul><li>d</li>\n</ul>\n</li>\n</ul>",
    "1. a\n\n   ```sh\n   x  <\n     y\n   ```\n2. b": (
        '<ol><li>a<pre tabindex="0"><code>x  &lt;\n  y</code></pre>\n</li>\n<li>b</li>\n</ol>'
    ),
    "text\n- a": "<p>text</p>\n<ul><li>a</li>\n</ul>",
    "| | |\n|---|---|\n| `a\\|b` | c |": (
        '<div class="table" tabindex="0"><table><tbody><tr><td><code>a|b</code></td><td>c</td></tr>\n'
        "</tbody></table></div>"
    ),
    "<!-- x -->\n![a](b.png)": "<p></p>",
}


@pytest.mark.parametrize("text", MARKDOWN)
def test_markdown(text: str) -> None:
    assert read(text, lambda to: to if to.startswith("#") else None).html == MARKDOWN[text] + "\n"


def test_the_same_heading_twice_has_two_ids() -> None:
    document = read("# A\n\nx\n\n## B\n\ny\n\n## B\n\n`z`", lambda to: to)
    assert [(one.anchor, one.text) for one in document.sections] == [("a", ["x"]), ("b", ["y"]), ("b-1", ["z"])]
