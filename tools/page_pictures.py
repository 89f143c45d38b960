"""Take the screenshots of the web page for the documentation: `python -m tools.page_pictures http://localhost:8000`.

The server must run with its demo models and --metrics_enable. Needs Chromium and `pip install ".[browser]" pillow`.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
QUESTIONS = ("Hello!", "What is the capital of France?")
SIZE = {"width": 1200, "height": 720}
COLORS = 256
"""Colours in the palette of a screenshot. The file has a third of the size, without a visible difference."""

LOAD = """() => {
  const messages = [{role: "user", content: "Tell me about yourself."}];
  const tokens = () => 100 + Math.floor(Math.random() * 200);
  const body = () => JSON.stringify({model: "demo", messages, max_tokens: tokens(), ignore_eos: true});
  const headers = {"Content-Type": "application/json"};
  const ask = async () => (await fetch("v1/chat/completions", {method: "POST", headers, body: body()})).text();
  const client = async () => { for (;;) await ask(); };
  for (let number = 0; number < 4; number++) client();
}"""
"""Runs four clients that chat without a pause, so that the server's view has something to show."""


def main(url: str) -> None:
    """Takes the screenshots of the chat and of the server's view."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        page.goto(url)
        page.locator("#model option").first.wait_for(state="attached")
        page.select_option("#model", "demo")
        for number, question in enumerate(QUESTIONS):
            page.fill("#text", question)
            page.press("#text", "Enter")
            page.locator(".message.assistant .cost").nth(number).wait_for()
        page.locator("#messages").evaluate("it => it.scrollTo(0, 0)")
        page.evaluate("document.activeElement.blur()")
        take(page, "page.png")
        page.click("#tab-server")
        page.evaluate(LOAD)
        page.wait_for_timeout(40_000)  # the view adds a sample every two seconds
        take(page, "server.png")
        browser.close()


def take(page: Any, name: str) -> None:
    """Saves a screenshot of the page into docs/."""
    from PIL import Image

    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(COLORS, Image.Quantize.MAXCOVERAGE).save(DOCS / name, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
