"""The web page: who gets it, what protects it, and whether its files fit together."""

from __future__ import annotations

import gzip
import hashlib
import json
import posixpath
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.api import router
from lean_ovms.composition import compose
from lean_ovms.features.web_page import api as page
from lean_ovms.manifest import Feature, PanelRow, Route
from tests.api.conftest import MakeApp, get, whole
from tests.cases import few_fast

HTML = "text/html,application/xhtml+xml,*/*;q=0.8"
MAX_COMPRESSED = 250_000
EXPORT = b"\nexport default temml;\n"
"""The text that is appended to Temml's script, which is not a module."""
LANGUAGES = ["de", "es", "ja", "zh"]
UNTRANSLATED = {"lean_ovms", "API", "top_p", "top_k", "min_p", "JSON", "JSON Schema", "Ctrl+Shift+O", "Ctrl+K"}
UNTRANSLATED |= {"512x512", "OpenVINO/Qwen3-0.6B-int8-ov"}
ROOT = Path(__file__).parents[3]
FOLDERS = {"": page.FILES, **{f"{row.inside('.').name}/": row.inside("web") for row in compose().panels}}
"""The folders with the page's files, by the prefix of their names on the server."""
FILES = {begin + name: folder / name for begin, folder in FOLDERS.items() for name in sorted(page.names(folder))}
"""The page's files by their names on the server."""


def shipped(*suffixes: str) -> dict[str, str]:
    """Returns the project's own files with these suffixes, by their names on the server."""
    return {
        name: path.read_text("utf-8")
        for name, path in FILES.items()
        if path.suffix in suffixes and not name.startswith("vendor/")
    }


async def test_a_browser_gets_the_page_and_other_clients_an_object(make_app: MakeApp) -> None:
    app, _ = await make_app(api_key="secret")
    response = await get(app, "/", accept=HTML)
    headers = dict(response.headers)
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert (await whole(await get(app, "/", accept="*/*")))["name"] == "lean_ovms"
    assert (await whole(await get(app, "/")))["name"] == "lean_ovms"


async def test_it_can_be_taken_away(make_app: MakeApp) -> None:
    app, _ = await make_app(web_page=False)
    assert (await whole(await get(app, "/", accept=HTML)))["name"] == "lean_ovms"
    assert (await get(app, "/web/main.js")).status == 404


@pytest.mark.parametrize("name", few_fast(sorted(FILES), 8))
async def test_files_are_compressed_and_sent_once(make_app: MakeApp, name: str) -> None:
    app, _ = await make_app()
    plain = await get(app, f"/web/{name}")
    packed = await get(app, f"/web/{name}", accept_encoding="gzip, br")
    assert isinstance(plain.body, bytes)
    assert isinstance(packed.body, bytes)
    assert gzip.decompress(packed.body) == plain.body == FILES[name].read_bytes()
    etag = dict(plain.headers)["ETag"]
    again = await get(app, f"/web/{name}", if_none_match=etag)
    assert (again.status, again.body) == (304, b"")
    assert (await get(app, f"/web/{name}", if_none_match="*")).status == 304


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("gzip;q=0", False), ("gzip; q=0.000, br", False), ("x-gzip2", False)],
)
async def test_it_is_compressed_only_for_those_who_accept_it(make_app: MakeApp, accepted: str, packed: bool) -> None:
    app, _ = await make_app()
    headers = dict((await get(app, "/web/main.js", accept_encoding=accepted)).headers)
    assert ("Content-Encoding" in headers) == packed


@pytest.mark.slow
def test_a_compressed_copy_of_the_wheel_is_sent(tmp_path: Path) -> None:
    shutil.copytree(page.FILES, tmp_path / "web")
    subprocess.run([sys.executable, "-c", COMPRESS, str(tmp_path / "web")], cwd=ROOT, check=True, timeout=300)
    copy = tmp_path / "web" / "main.js.gz"
    assert gzip.decompress(copy.read_bytes()) == (tmp_path / "web" / "main.js").read_bytes()
    assert page.read(tmp_path / "web" / "main.js").compressed == copy.read_bytes()
    assert "main.js.gz" not in page.names(tmp_path / "web")


COMPRESS = """
import pathlib, runpy, sys
import setuptools
setuptools.setup = lambda **_: None
runpy.run_path("setup.py")["compress"](pathlib.Path(sys.argv[1]))
"""


@pytest.mark.parametrize("name", ["nothing.js", "../config.py", "%2e%2e/config.py", "", "index.html/x"])
async def test_no_other_file_is_served(make_app: MakeApp, name: str) -> None:
    app, _ = await make_app()
    assert (await get(app, f"/web/{name}")).status == 404


@pytest.mark.parametrize(
    ("path", "level"),
    [
        ("/", "INFO"),
        ("/web/main.js", "DEBUG"),
        ("/server_info", "DEBUG"),
        *((path, "DEBUG") for path in ("/health", "/v1/health", "/ping", "/v2/health/live", "/v2/health/ready")),
        ("/web/x.js", "INFO"),
        ("/v1/models", "INFO"),
    ],
)
async def test_what_an_open_page_asks_for_is_not_logged_at_info(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture, path: str, level: str
) -> None:
    app, _ = await make_app(access_log=True)
    caplog.set_level("DEBUG", "lean_ovms.access")
    await (await get(app, path, accept=HTML)).aclose()
    assert [record.levelname for record in caplog.records if record.name == "lean_ovms.access"] == [level]


def test_the_page_is_small_and_whole() -> None:
    assert sum(len(gzip.compress(path.read_bytes())) for path in FILES.values()) < MAX_COMPRESSED
    texts = shipped(".html", ".js", ".css")
    own_ids = {name: set(re.findall(r'\bid="([\w-]+)"', text)) for name, text in texts.items()}
    ids = set().union(*own_ids.values())
    assert sum(map(len, own_ids.values())) == len(ids)
    for name, text in texts.items():
        folder = name.rpartition("/")[0]
        if name.endswith(".js"):
            modules = re.findall(r'(?:from |import\()"(\.{1,2}/[\w./]+)"', text)
            assert {posixpath.normpath(posixpath.join(folder, module)) for module in modules} <= FILES.keys(), name
            seen = own_ids["index.html"] | own_ids.get(f"{folder}/panel.html", set())
            assert set(re.findall(r'byId\("([\w-]+)"\)', text)) <= seen, name
            for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
                assert way not in text, f"{name}: {way} would let a model's text become markup or code"
    assert set(re.findall(r'(?:src|href)="web/([\w.]+)"', texts["index.html"])) <= FILES.keys()
    assert set(re.findall(r'href="#(icon-\w+)"', texts["index.html"])) <= ids
    assert {f"icon-{name}" for name in re.findall(r'icon(?:Button)?\("(\w+)"', "".join(texts.values()))} <= ids
    assert {f"icon-{row.icon}" for row in compose().panels} <= ids
    assert not re.search(r"https?://(?!www\.w3\.org)", "".join(texts.values()).replace("(https?:", ""))
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|style=", "".join(shipped(".html").values()))


def test_the_page_asks_by_itself_only_for_what_every_server_has() -> None:
    """Endpoints of optional features are actions of their manifests, or are called by their own panels."""
    text = "".join(path.read_text("utf-8") for path in page.FILES.glob("*.js"))
    asked = set(re.findall(r'\b(?:get|post|postForm)\((?:\w+ \? )?"([\w/]+)"', text))
    assert {"v1/models", "v1/chat/completions", "server_info", "web/actions"} <= asked
    owners = {row.path[1:]: one for one in compose().features for row in every_of(one)}
    known = {path: owners[path] for path in asked if path in owners}
    assert asked == known.keys()
    assert {one.name for one in known.values() if not (one.essential or one.name == "web_page")} == set()
    for row in compose().panels:
        text = "".join(path.read_text("utf-8") for path in row.inside("web").glob("*.js"))
        asked = set(re.findall(r'\b(?:get|post|postForm)\((?:\w+ \? )?"([\w/]+)"', text))
        assert {owners[path].name for path in asked} == {row.inside(".").name}


def every_of(feature: Feature) -> list[Route]:
    """Returns the routes of a feature with each of their bases, without variants."""
    return [replace(row, path=base + row.path) for row in feature.routes if not row.variant for base in row.bases]


def test_actions_of_the_page_are_endpoints_that_the_page_knows() -> None:
    text = "".join(path.read_text("utf-8") for path in page.FILES.glob("*.js"))
    text += (page.FILES / "index.html").read_text("utf-8")
    paths = {row.path for row in router.every()}
    rows = [row for one in compose().features for row in one.page]
    assert len({row.action for row in rows}) == len(rows)
    assert {row.path for row in rows} <= paths
    used = set(re.findall(r'pathOf\("(\w+)"\)|data-action="(\w+)"|pathOf\(\w+ \? "(\w+)" : "(\w+)"\)', text))
    assert {row.action for row in rows} == {name for names in used for name in names if name}


async def test_the_page_is_told_what_the_server_has(make_app: MakeApp) -> None:
    async def actions(**options: Any) -> dict[str, str]:
        app, _ = await make_app(**options)
        found: dict[str, str] = await whole(await get(app, "/web/actions"))
        return found

    assert (await actions())["load"] == "models/load"
    without = await actions(without="llama_cpp,docs_page")
    assert without.keys() & {"load", "unload", "defaults", "api", "documentation"} == set()
    assert "pull" not in await actions()
    assert (await actions(tool_server="a=http://x/"))["call_tool"] == "v1/tool_servers/call"


@pytest.mark.parametrize("row", compose().panels, ids=lambda row: row.inside(".").name)
async def test_a_panel_goes_with_its_feature(make_app: MakeApp, row: PanelRow) -> None:
    feature = row.inside(".").name
    for without, shown in [("", True), (feature, False)]:
        app, _ = await make_app(without=without)
        response = await get(app, "/", accept=HTML)
        assert isinstance(response.body, bytes)
        text = response.body.decode()
        assert page.PANELS not in text
        assert (f'data-feature="{feature}"' in text) is shown
        assert all(
            (name in text) is shown
            for name in re.findall(r' id="[\w-]+"', (row.inside("web") / page.PANEL).read_text())
        )
        assert (await get(app, f"/web/{feature}/panel.js")).status == (200 if shown else 404)
        views = {one.view for one in compose(without).panels}
        assert set(re.findall(r'id="tab-(\w+)"', text)) == {"chat", "server", *views}


def test_libraries_are_what_their_authors_published() -> None:
    """web/vendor/README.md has the version and the hash of each file, and the licences are in the same folder."""
    folder = page.FILES / "vendor"
    rows = re.findall(r"^\| `([\w./]+)` \|.*\| `([0-9a-f]{64})` \|$", (folder / "README.md").read_text(), re.M)
    scripts = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.js")}
    assert dict(rows) == {name: hashlib.sha256(text.removesuffix(EXPORT)).hexdigest() for name, text in scripts.items()}
    for library in ("marked", "highlight", "temml"):
        assert (folder / f"LICENSE-{library}").read_text().strip()


def strings(language: str, begin: str = "") -> dict[str, str]:
    found: dict[str, str] = json.loads((FOLDERS[begin] / "strings" / f"{language}.json").read_text("utf-8"))
    return found


def texts_of(folder: Path) -> tuple[set[str], str]:
    """Returns the texts for readers in the files of a folder and in its scripts."""
    scripts = "".join(path.read_text("utf-8") for path in folder.glob("*.js"))
    [markup] = [path.read_text("utf-8") for path in folder.glob("*.html")]
    used = set(re.findall(r'\bt\("([^"]+)"', scripts))
    used |= set(re.findall(r'(?:placeholder|title|aria-label)="([^"]+)"', markup))
    used |= {text.strip() for text in re.findall(r">([^<>]+)<", re.sub(r"<!--.*-->", "", markup))}
    return used - {""} - UNTRANSLATED, scripts


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("begin", FOLDERS)
def test_every_text_is_translated(language: str, begin: str) -> None:
    used, scripts = texts_of(FOLDERS[begin])
    for row in compose().panels:
        if f"{row.inside('.').name}/" == begin:
            used |= {row.title, *dict(row.tasks).values()}
    known = strings(language, begin)
    assert used <= known.keys() | (strings(language).keys() if begin else set())
    for text in known.keys() - used:
        assert f'"{text}"' in scripts, f"{text} is used nowhere"
    for text, translation in known.items():
        assert sorted(re.findall(r"\{\w+\}", text)) == sorted(re.findall(r"\{\w+\}", translation)), text


@pytest.mark.parametrize(
    "file",
    [*(FILES[name] for name in shipped(".js", ".html")), ROOT / "lean_ovms/features/docs_page/docs.html"],
    ids=lambda path: f"{path.parent.parent.name}-{path.name}",
)
def test_what_a_handler_returns_has_no_effect(file: Path) -> None:
    """A handler that is a property or an attribute cancels the key or click if it returns false. An arrow function that
    returned a comparison once blocked all keys of a field. One of `addEventListener` cancels only explicitly."""
    text = file.read_text("utf-8")
    assert re.findall(r"[\w\])]\.on[a-z]+ *=(?!=).*|\bon[a-z]+: .*|<[^>]* on[a-z]+=.*", text) == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_what_a_model_writes_stays_text(tmp_path: Path) -> None:
    """The Markdown renderer runs on a document of a few lines, with tags, properties and children."""
    shutil.copytree(page.FILES, tmp_path / "web")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "check.js").write_text(CHECK)
    subprocess.run(["node", "check.js"], cwd=tmp_path, check=True, timeout=300)


CHECK = r"""
import assert from "node:assert";
class Node {
  constructor(tag) { this.tag = tag; this.childNodes = []; this.dataset = {}; }
  append(...children) {
    this.childNodes.push(...children);
    for (const child of children) if (child instanceof Node) child.parent = this;
  }
  replaceChildren(...children) { this.childNodes = []; this.append(...children); }
  addEventListener() {}
  setAttribute(name, value) { this[name] = value; }
  remove() { this.parent.childNodes.splice(this.parent.childNodes.indexOf(this), 1); }
  get lastChild() { return this.childNodes.at(-1); }
}
globalThis.document = {
  createElement: (tag) => new Node(tag),
  createElementNS: (_, tag) => new Node(tag),
  createTextNode: (text) => text,
};
const { MarkdownView, markdown } = await import("./web/markdown.js");
const flat = (node) => typeof node === "string" ? [node] : [node, ...node.childNodes.flatMap(flat)];
const show = (node) => typeof node === "string" ? node : node.tag === "button" ? ""
  : `<${node.tag}>${node.textContent ?? node.childNodes.map(show).join("")}</${node.tag}>`;
const shown = (text) => markdown(text).childNodes.map(show).join("");

assert.equal(shown("a **b** _c_ `d` ~~e~~"), "<p>a <strong>b</strong> <em>c</em> <code>d</code> <del>e</del></p>");
assert.equal(shown("# t\n\ntext"), "<h2>t</h2><p>text</p>");
assert.equal(shown("a  \nb\nc &lt;&#65;&nope; x<br>y"), "<p>a<br></br>b\nc <A&nope; x<br></br>y</p>");
assert.equal(shown("- a\n- b\n  - c"),
  "<ul><li><span>a</span></li><li><span>b</span><ul><li><span>c</span></li></ul></li></ul>");
assert.equal(shown("- [x] a"), "<ul><li><input></input><span>a</span></li></ul>");
assert.equal(shown("> a"), "<blockquote><p>a</p></blockquote>");
assert.equal(shown("|a|b|\n|-|-:|\n|1|2|"),
  "<div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table></div>");
assert.ok(shown("```py\n<b>x</b>\n```").includes("<code><b>x</b></code>"));
for (const text of ["$x^2$", "\\(x^2\\)"]) assert.equal(shown("a " + text), "<p>a <span>x^2</span></p>");
for (const text of ["$$\nx^2\n$$", "\\[\nx^2\n\\]"]) assert.equal(shown("a\n\n" + text), "<p>a</p><div>\nx^2\n</div>");
assert.equal(shown("It costs $5 or $6."), "<p>It costs $5 or $6.</p>");

// While a text grows, what is whole stays as it is, and the end is as if it had come at once.
const long = "# t\n\none\n\n- a\n- b\n\n```js\nx\n```\n\ntwo [r]\n\n|a|\n|-|\n|1|\n\nthree\n\n[r]: https://example.org/\n";
const view = new MarkdownView();
let first;
for (let end = 1; end <= long.length; end += 1) {
  view.update(long.slice(0, end), false);
  if (end === 40) first = view.element.childNodes[0];
  if (end > 40) assert.equal(view.element.childNodes[0], first);
}
view.update(long, true);
assert.equal(view.element.childNodes.map(show).join(""), shown(long));

const hostile = [
  "*".repeat(5000), "[".repeat(5000), "> ".repeat(5000) + "x", "`".repeat(4999), "- ".repeat(3000) + "x",
  "|".repeat(4000) + "\n" + "|-".repeat(2000), "_".repeat(4000) + "a", "~~".repeat(4000), "1. ".repeat(2000) + "x",
  "![](".repeat(20000), "a**b" + "c*".repeat(20000), "<a ".repeat(20000), "[a](".repeat(5000), "$a".repeat(50000),
  "&".repeat(50000), "- a\n  - a\n".repeat(2000),
];
// What follows or precedes a long run decides.
const run = " ".repeat(200_000);
hostile.push("x" + run + "y", "# a" + run + "b", "# " + "#".repeat(200_000) + "a", "|\n" + run + "x-",
  "a|b\n-" + run + "x", "- " + run + "a\u2028b", "a|b\n-:" + run + "|" + run + "x",
  Array.from({ length: 500 }, (_, count) => "`".repeat(count + 1) + "a").join(""));
for (const text of hostile) {
  const began = process.cpuUsage().user;
  markdown(text);
  assert.ok(process.cpuUsage().user - began < 5e6, `${text.slice(0, 20)} takes too long`);
}

const { quantile } = await import("./web/server.js");
const before = { bounds: [0.5, 1], counts: [9, 0, 1] };
assert.equal(quantile({ bounds: [0.5, 1], counts: [9, 2, 1] }, 0.5, before), 750);
assert.equal(quantile({ bounds: [0.5, 1], counts: [9, 0, 2] }, 0.5, before), 1000);
assert.equal(quantile(before, 0.5, before), undefined);
assert.equal(quantile(before, 0.25), 1000 * 0.5 * 2.5 / 9);
const { minutesFor, roundUp } = await import("./web/charts.js");
assert.deepEqual([0, 1, 30, 31, 60, 150].map(minutesFor), [1, 1, 1, 2, 2, 5]);
assert.deepEqual([0, 1, 1.1, 3, 70, 1000].map(roundUp), [1, 1, 2, 5, 100, 1000]);

const tree = await import("./web/tree.js");
const talk = { messages: [], tip: -1 };
const [question, one, two, more] = ["q", "1", "2", "m"].map((content) => ({ content }));
const texts = () => tree.path(talk).map(({ content }) => content).join("");
tree.add(talk, null, question);
tree.add(talk, question, one);
tree.add(talk, one, more);
tree.add(talk, question, two);
assert.equal(texts(), "q2");
assert.deepEqual(tree.versions(talk, one), [one, two]);
tree.choose(talk, one);
assert.equal(texts(), "q1m");
tree.add(talk, question, { content: "" });
tree.takeBack(talk);
assert.equal(texts(), "q2");
assert.equal(tree.asTree({ messages: [{}, {}] }).messages[1].parent, 0);

const { body, asCurl, asPython } = await import("./web/request.js");
globalThis.document.baseURI = "http://localhost:8000/";
globalThis.sessionStorage = { getItem: () => null };
const request = body("m", [{ role: "user", content: "it's" }], { temperature: "0", stop: "a\nb", thinking: "off" });
assert.deepEqual(request.stop, ["a", "b"]);
assert.equal(request.temperature, 0);
assert.deepEqual(request.chat_template_kwargs, { enable_thinking: false });
assert.equal("chat_template_kwargs" in body("m", [], {}), false);
assert.ok(asCurl(request, true).includes("it'\\''s"));
assert.ok(asPython(request, false).includes('model="m",'));
assert.throws(() => body("m", [], { tools: "{" }), /Tools/);
const file = { name: "a.md", text: "```x```" };
const asked = body("m", [{ role: "user", content: "q", files: [file] }], {}).messages[0];
assert.equal(asked.content, "a.md:\n````\n```x```\n````\n\nq");
"""
