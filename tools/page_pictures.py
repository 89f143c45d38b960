"""Take the pictures of the web page for the documentation: `python -m tools.page_pictures http://localhost:8000`.

The server runs with its demo models and --metrics_enable. Needs Chromium and `pip install ".[browser]" pillow`.
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
"""Colours of a picture: a palette of them makes a file of a third of the size, and no difference to the eye."""

LOAD = """() => {
  const messages = [{role: "user", content: "Tell me about yourself."}];
  const tokens = () => 100 + Math.floor(Math.random() * 200);
  const body = () => JSON.stringify({model: "demo", messages, max_tokens: tokens(), ignore_eos: true});
  const headers = {"Content-Type": "application/json"};
  const ask = async () => (await fetch("v1/chat/completions", {method: "POST", headers, body: body()})).text();
  const client = async () => { for (;;) await ask(); };
  for (let number = 0; number < 4; number++) client();
}"""
"""Four clients that chat without a pause, for the server's view."""


def main(url: str) -> None:
    """Take both pictures."""
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
        page.wait_for_timeout(40_000)  # the view has a sample every other second
        take(page, "server.png")
        browser.close()


def take(page: Any, name: str) -> None:
    """Save what the page shows."""
    from PIL import Image

    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(COLORS, Image.Quantize.MAXCOVERAGE).save(DOCS / name, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
