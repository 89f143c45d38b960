"""Modules that do not need POSIX can be imported without it; others report the lack of it in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WITHOUT_POSIX = """
import importlib, os, pkgutil, signal, socket, sys

MISSING = {"fcntl", "resource", "pwd", "grp", "termios", "uvloop", "openvino", "openvino_genai", "openvino_tokenizers",
           "llguidance", "opentelemetry", "psycopg", "cryptography", "ray",
           "zmq", "msgspec"}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
for module in MISSING & set(sys.modules):
    del sys.modules[module]
import asyncio, logging, subprocess  # before the platform changes: they have parts of their own for Windows
sys.platform = "win32"
for owner, names in ((signal, ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGCHLD")), (os, ("sched_getaffinity", "fork", "killpg",
                     "pidfd_open", "waitid")), (socket, ("AF_UNIX",))):
    for name in names:
        if hasattr(owner, name):
            delattr(owner, name)

import lean_ovms
CHILDREN = ("lean_ovms.engine.paged", "lean_ovms.engine.loading", "lean_ovms.ray_serve",
            "lean_ovms.features.ray.router", "lean_ovms.features.responses.postgres",
            "lean_ovms.features.traces.observer", "lean_ovms.__main__")
PROCESSES = ("decoder_process", "helper_process", "reader_process")
for found in pkgutil.walk_packages(lean_ovms.__path__, "lean_ovms."):
    of_engine = found.name.startswith("lean_ovms.features.") and "child" in found.name.split(".")
    if of_engine or found.name.startswith(CHILDREN) or found.name.endswith(PROCESSES):
        continue
    importlib.import_module(found.name)

from lean_ovms.util.child_process import spawn_with_socket
try:
    spawn_with_socket(["python"])
except OSError as error:
    print(error)
from lean_ovms.cli.main import main
sys.argv = ["lean_ovms", "--fake_engine", "--rest_port", "0"]
main()
"""


@pytest.mark.slow
def test_everything_but_the_engines_is_imported_on_windows_which_is_said_to_be_too_little() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", WITHOUT_POSIX],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    sentence = "lean_ovms does not run on Windows, where a process cannot be given a socket"
    assert done.returncode == 3, done.stderr
    assert [line for line in done.stderr.splitlines() if sentence in line] == done.stderr.splitlines()
    assert sentence in done.stdout


@pytest.mark.slow
def test_a_server_without_uvloop_runs_and_says_that_it_is_slower() -> None:
    program = """
import asyncio, logging, sys
sys.modules["uvloop"] = None
from lean_ovms.server import run
async def main():
    return type(asyncio.get_running_loop()).__module__
logging.basicConfig()
print(run._run(main()))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "uvloop is not installed" in done.stderr
    assert done.stdout.startswith("asyncio")
