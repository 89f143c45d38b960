"""The examples on the page about embeddings, and of the README with the embedded models, exactly as printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.e2e.conftest import Process

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "lean_ovms" / "features" / "pooling" / "README.md").read_text("utf-8")

pytestmark = pytest.mark.model


def curls(text: str) -> Iterator[tuple[str, Any]]:
    """Returns path and body of every curl command for this server."""
    for command in re.findall(r"^(curl (?:.*\\\n)*.*(?:\n .*)*)$", text, re.M):
        words = shlex.split(command)
        body = words[words.index("-d") + 1]
        yield words[1].removeprefix("http://localhost:8000"), orjson.loads(body)


def ask(server: Process, path: str, body: Any) -> Any:
    answer = httpx.post(server.url + path, json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_readmes_second_curl_is_an_embedding(server: Process) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    (chat, _), (path, body) = islice(curls(readme), 2)
    assert (chat, path) == ("/v1/chat/completions", "/v1/embeddings")
    [item] = ask(server, path, body)["data"]
    shown = re.search(r'"embedding": \[([^\]…]*)…', readme)
    assert shown
    first = [float(number) for number in shown[1].split(",") if number.strip()]
    assert item["embedding"][: len(first)] == pytest.approx(first, abs=2e-3)


def test_the_semantic_search(server: Process) -> None:
    """The output is that of the document, except for rounding of the scores."""
    [program] = re.findall(r"```python\n(import numpy.*?)```", TEXT, re.S)
    [expected] = re.findall(r"```text\n(.*?)```", TEXT, re.S)
    program = program.replace("http://localhost:8000", server.url)
    environ = {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environ, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    number = re.compile(r"\d\.\d\d")
    assert number.sub("", done.stdout) == number.sub("", expected)
    assert [float(n) for n in number.findall(done.stdout)] == pytest.approx(
        [float(n) for n in number.findall(expected)], abs=0.02
    )
