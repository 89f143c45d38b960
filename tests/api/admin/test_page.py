"""The page: who gets it, what protects it, and that its files fit together."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lean_ovms.api.admin import page
from tests.api.conftest import MakeApp, get, whole

HTML = "text/html,application/xhtml+xml,*/*;q=0.8"
MAX_BYTES = 150_000
ROOT = Path(__file__).parents[3]


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


@pytest.mark.parametrize("name", sorted(page.names()))
async def test_files_are_compressed_and_sent_once(make_app: MakeApp, name: str) -> None:
    app, _ = await make_app()
    plain = await get(app, f"/web/{name}")
    packed = await get(app, f"/web/{name}", accept_encoding="gzip, br")
    assert isinstance(plain.body, bytes)
    assert isinstance(packed.body, bytes)
    assert gzip.decompress(packed.body) == plain.body == (page.FILES / name).read_bytes()
    etag = dict(plain.headers)["ETag"]
    again = await get(app, f"/web/{name}", if_none_match=etag)
    assert (again.status, again.body) == (304, b"")


@pytest.mark.slow
def test_a_compressed_copy_of_the_wheel_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(page.FILES, tmp_path / "web")
    monkeypatch.setattr(page, "FILES", tmp_path / "web")
    subprocess.run([sys.executable, "-c", COMPRESS, str(tmp_path / "web")], cwd=ROOT, check=True, timeout=300)
    copy = tmp_path / "web" / "main.js.gz"
    assert gzip.decompress(copy.read_bytes()) == (tmp_path / "web" / "main.js").read_bytes()
    assert page.read.__wrapped__("main.js").compressed == copy.read_bytes()
    assert "main.js.gz" not in page.names.__wrapped__()


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
    texts = {name: (page.FILES / name).read_text("utf-8") for name in page.names()}
    assert sum(map(len, texts.values())) < MAX_BYTES
    ids = set(re.findall(r'\bid="([\w-]+)"', texts["index.html"]))
    for name, text in texts.items():
        if name.endswith(".js"):
            assert set(re.findall(r'from "\./([\w.]+)"', text)) <= texts.keys(), name
            assert set(re.findall(r'byId\("([\w-]+)"\)', text)) <= ids, name
            for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
                assert way not in text, f"{name}: {way} would let a model's text become markup or code"
    assert set(re.findall(r'(?:src|href)="web/([\w.]+)"', texts["index.html"])) <= texts.keys()
    assert not re.search(
        r"https?://(?!\w*\.?(spec\.commonmark|www\.w3)\.org)", "".join(texts.values()).replace("(https?:", "")
    )
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|style=", texts["index.html"])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_what_a_model_writes_stays_text(tmp_path: Path) -> None:
    """The Markdown renderer on a document of a few lines: elements with tag, properties and children."""
    shutil.copytree(page.FILES, tmp_path / "web")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "check.js").write_text(CHECK)
    subprocess.run(["node", "check.js"], cwd=tmp_path, check=True, timeout=300)


CHECK = r"""
import assert from "node:assert";
class Node {
  constructor(tag) { this.tag = tag; this.children = []; this.dataset = {}; }
  append(...children) { this.children.push(...children); }
}
globalThis.document = {
  createElement: (tag) => new Node(tag),
  createTextNode: (text) => text,
  getElementById: () => null,
};
const { markdown } = await import("./web/markdown.js");
const flat = (node) => typeof node === "string" ? [node] : [node, ...node.children.flatMap(flat)];
const show = (node) => typeof node === "string" ? node
  : `<${node.tag}>${node.textContent ?? node.children.map(show).join("")}</${node.tag}>`;
const shown = (text) => markdown(text).children.map(show).join("");

assert.equal(shown("a **b** _c_ `d`"), "<p>a <strong>b</strong> <em>c</em> <code>d</code></p>");
assert.equal(shown("# t\n\ntext"), "<h3>t</h3><p>text</p>");
assert.equal(shown("## C# ##\n#"), "<h4>C#</h4><p>#</p>");
assert.equal(shown("a  \nb\nc"), "<p>a<br></br>b\nc</p>");
assert.equal(shown("`` a`b `` `c`"), "<p><code>a`b</code> <code>c</code></p>");
assert.equal(shown("- a\n- b\n  - c"), "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul></li></ul>");
assert.equal(shown("|a|b|\n|-|-|\n|1|2|"),
  "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>");
assert.ok(shown("```py\n<b>x</b>\n```").includes("<code><b>x</b></code>"));
const hostile = [
  "<img src=x onerror=alert(1)>", "<script>alert(1)</script>", "<svg/onload=alert(1)>",
  "[a](javascript:alert(1))", "[a](JaVaScRiPt:alert(1))", "[a](data:text/html,x)", "![a](http://b.example/c.png)",
  "[a](//b.example)", "\u202eabc", "*".repeat(5000), "[".repeat(5000), "> ".repeat(5000) + "x", "`".repeat(4999),
  "- ".repeat(3000) + "x", "|".repeat(4000) + "\n" + "|-".repeat(2000), "_".repeat(4000) + "a", "~~".repeat(4000),
];
// What follows or precedes a long run decides: each took seconds for 32000 characters, and minutes for these.
const run = " ".repeat(200_000);
hostile.push("x" + run + "y", "# a" + run + "b", "# " + "#".repeat(200_000) + "a", "|\n" + run + "x-",
  "a|b\n-" + run + "x", "- " + run + "a\u2028b", "a|b\n-:" + run + "|" + run + "x",
  Array.from({ length: 500 }, (_, count) => "`".repeat(count + 1) + "a").join(""));
const TAGS = new Set(["div", "p", "a", "code", "pre", "em", "strong", "del", "ul", "ol", "li", "blockquote", "button",
  "table", "thead", "tbody", "tr", "th", "td", "hr", "br", "h3", "h4", "h5", "h6"]);
for (const text of hostile) {
  const began = Date.now();
  for (const node of flat(markdown(text))) {
    if (typeof node === "string") continue;
    assert.ok(TAGS.has(node.tag), node.tag);
    if (node.tag === "a") assert.match(node.href, /^(https?:\/\/|mailto:)/);
  }
  assert.ok(Date.now() - began < 5000, `${text.slice(0, 20)} takes too long`);
}

const { quantile } = await import("./web/server.js");
const before = { bounds: [0.5, 1], counts: [9, 0, 1] };
assert.equal(quantile({ bounds: [0.5, 1], counts: [9, 2, 1] }, 0.5, before), 750);
assert.equal(quantile({ bounds: [0.5, 1], counts: [9, 0, 2] }, 0.5, before), 1000);
assert.equal(quantile(before, 0.5, before), undefined);
assert.equal(quantile(before, 0.25), 1000 * 0.5 * 2.5 / 9);
const { body, asCurl, asPython } = await import("./web/request.js");
globalThis.document.baseURI = "http://localhost:8000/";
const request = body("m", [{ role: "user", content: "it's" }], { temperature: "0", stop: "a\nb", thinking: true });
assert.deepEqual(request.stop, ["a", "b"]);
assert.equal(request.temperature, 0);
assert.ok(asCurl(request, true).includes("it'\\''s"));
assert.ok(asPython(request, false).includes('model="m",'));
assert.throws(() => body("m", [], { tools: "{" }), /Tools/);
"""
