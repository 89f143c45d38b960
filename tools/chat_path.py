"""Measure which files of the package one streamed chat loads and enters, in the front end and in its engine process.

    python -m tools.chat_path            prints the numbers
    python -m tools.chat_path --write    also writes them, and the table of files, into docs/tour.md

A server with the demo model runs under a profile hook that notes when functions of each file are called. A chat
"enters" the files of which a function is called between its request and the end of its answer. It "loads" the files
that a process has imported by then.
"""

from __future__ import annotations

import argparse
import ast
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import lean_ovms

PACKAGE = Path(lean_ovms.__file__).parent
TOUR = Path(__file__).parents[1] / "docs" / "tour.md"
LISTENING = re.compile(r"http://127\.0\.0\.1:(\d+)")
READY = "ready: demo"
WAIT_S = 60
START_ENDS_S = 0.5
"""Seconds to wait between the line that says "ready" and the request, so that work of the start is not counted as the
chat's."""
MARKER_LINES = 5
"""An __init__.py with at most this many lines is not counted: it only makes its folder a package."""
HOOK = """
import atexit, json, os, sys, threading, time

folder, out = os.environ["CHAT_PATH_PACKAGE"], os.environ["CHAT_PATH_OUT"]
entered = {}

def note(frame, event, _):
    if event == "call":
        name = frame.f_code.co_filename
        if name.startswith(folder):
            times, now = entered.setdefault(name, []), time.monotonic()
            if not times or now - times[-1] > 0.0005:
                times.append(now)

def dump():
    sys.setprofile(None)
    loaded = [m.__file__ for m in list(sys.modules.values()) if (getattr(m, "__file__", None) or "").startswith(folder)]
    main = sys.modules.get("__main__")
    worker = "engine.worker" in (getattr(getattr(main, "__spec__", None), "name", "") or "")
    with open(f"{out}/{'engine' if worker else 'front end'}.json", "w") as file:
        json.dump({"loaded": sorted(set(loaded)), "entered": entered}, file)

leave = os._exit
def left(status):
    dump()
    leave(status)
os._exit = left
atexit.register(dump)
sys.setprofile(note)
threading.setprofile(note)
"""
"""The code that each process runs before anything else. It writes what it has noted when the process ends."""


@dataclass(frozen=True, slots=True)
class Process:
    """The files of the package that one process has loaded and entered, in alphabetical order."""

    loaded: list[Path]
    """The files of all modules that the process has imported."""
    entered: list[Path]
    """The files of which a function was called while the chat ran."""


def measure() -> dict[str, Process]:
    """Returns the files that one streamed chat loads and enters, by the name of the process."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(HOOK)
        began, ended = _chat(folder)
        found = {}
        for name in ("front end", "engine"):
            noted = json.loads(Path(folder, f"{name}.json").read_text())
            entered = [path for path, times in noted["entered"].items() if any(began <= at <= ended for at in times)]
            found[name] = Process(*(sorted(filter(_counts, map(Path, paths))) for paths in (noted["loaded"], entered)))
        return found


def _counts(path: Path) -> bool:
    """Returns whether a file is counted. An __init__.py that only makes its folder a package is not."""
    return path.name != "__init__.py" or lines(path) > MARKER_LINES


def _chat(folder: str) -> tuple[float, float]:
    """Runs a server and one streamed chat.

    Returns the monotonic times of the request and of the end of the answer.
    """
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{PACKAGE.parent}", "CHAT_PATH_OUT": folder}
    environment |= {"CHAT_PATH_PACKAGE": str(PACKAGE), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "lean_ovms", "--rest_port", "0", "--rest_bind_address", "127.0.0.1"]
    command += ["--model_path", str(PACKAGE / "demo_model"), "--model_name", "demo"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            port = next(int(found[1]) for line in server.stderr if (found := LISTENING.search(line)))
            next(line for line in server.stderr if READY in line)
            time.sleep(START_ENDS_S)
            began = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
            body = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "stream": True}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse().read()
            ended = time.monotonic()
            assert answer.endswith(b"data: [DONE]\n\n"), answer
            connection.close()
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=WAIT_S)
    return began, ended


def lines(path: Path) -> int:
    """Returns the number of lines in a file."""
    return len(path.read_text("utf-8").splitlines())


def numbers(found: dict[str, Process]) -> dict[str, int]:
    """Returns the figures for docs/tour.md by their descriptions. A file that both processes have counts twice."""
    loaded = [path for one in found.values() for path in one.loaded]
    entered = [path for one in found.values() for path in one.entered]
    package = list(PACKAGE.rglob("*.py"))
    core = [path for path in package if PACKAGE / "features" not in path.parents]
    return {
        "files that a streamed chat loads": len(loaded),
        "lines in these files": sum(map(lines, loaded)),
        "files that it enters": len(entered),
        "lines in those files": sum(map(lines, entered)),
        "lines of the core": sum(map(lines, core)),
        "lines of the package": sum(map(lines, package)),
    }


def table(found: dict[str, Process]) -> str:
    """Returns the figures and the table of the files that a chat enters, for docs/tour.md."""
    counted = numbers(found)
    rows = [f"- {name}: {value:,}" for name, value in counted.items()]
    for process, one in found.items():
        rows += ["", f"| {process}, in lean_ovms | lines | what it is |", "|---|---|---|"]
        for path in one.entered:
            doc = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
            sentence = re.split(r"(?<=[.:])\s|\n\n", doc.replace("\n", " ") + " ", maxsplit=1)[0].rstrip(". :")
            rows.append(f"| `{path.relative_to(PACKAGE)}` | {lines(path)} | {sentence} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the table into docs/tour.md")
    arguments = parser.parse_args()
    found = measure()
    for name, value in numbers(found).items():
        print(f"{value:8,} {name}")
    if arguments.write:
        text = re.sub(
            r"(<!-- chat path -->\n).*?(<!-- /chat path -->)",
            lambda m: f"{m[1]}{table(found)}\n{m[2]}",
            TOUR.read_text("utf-8"),
            flags=re.DOTALL,
        )
        TOUR.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
