"""Starts that cannot succeed report the reason in one line, and have an exit status of their own."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.api.keys import ApiKeys
from lean_ovms.config import DEMO_MODEL, Config
from lean_ovms.errors import WrongOptions
from lean_ovms.server import run as serve
from lean_ovms.server.run import build, close
from lean_ovms.util import resources

ROOT = Path(__file__).parents[2]


def run(*flags: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lean_ovms", "--rest_bind_address", "127.0.0.1", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **settings)


@pytest.mark.slow
def test_a_wrong_model_path_is_found_before_the_server_listens_and_logged_in_the_form_asked_for() -> None:
    done = run("--model_path", "/no/such/model", "--rest_port", "0", "--log_format", "json", "--log_level", "ERROR")
    [line] = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, line["level"], line["logger"]) == (2, "ERROR", "lean_ovms")
    assert "cannot start: there is no model at /no/such/model: no such directory" in line["message"]


PORT, SOCKET, CLIENTS = "http://[::]:8", "unix:/run/l.sock", "clients use http://localhost:8/v1"


@pytest.mark.parametrize(
    ("address", "options", "line"),
    [
        (PORT, {}, f"{CLIENTS}, browsers http://localhost:8/ and http://localhost:8/docs"),
        (PORT, {"without": "web_page"}, f"{CLIENTS}, browsers http://localhost:8/docs"),
        (PORT, {"web_page": False, "without": "docs_page"}, CLIENTS),
        (SOCKET, {"root_path": "/llm"}, "try curl --unix-socket /run/l.sock http://localhost/llm/v1/models"),
    ],
)
def test_the_log_says_how_clients_reach_the_server(address: str, options: dict[str, Any], line: str) -> None:
    assert serve._entry_points([address], Config(**options)) == line


@pytest.mark.parametrize(
    ("address", "key", "warns"),
    [
        ("http://0.0.0.0:8000", "", True),
        ("https://[::]:8000", "", True),
        ("http://192.168.1.2:80", "", True),
        ("http://0.0.0.0:8000", "secret", False),
        ("http://127.0.0.1:8000", "", False),
        ("http://[::1]:8000", "", False),
        ("unix:/run/l.sock", "", False),
    ],
)
def test_a_server_without_a_key_that_others_can_reach_says_so_in_one_line(
    caplog: pytest.LogCaptureFixture, address: str, key: str, warns: bool
) -> None:
    config = Config(api_key=key)
    serve._log_if_open(config, [address], ApiKeys(config))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warns
    assert ("--api_key_file" in caplog.text and "--rest_bind_address 127.0.0.1" in caplog.text) == warns


@pytest.mark.parametrize(("without", "names_path"), [("", True), ("ovms_admin", False)])
async def test_the_log_warns_when_no_model_could_be_loaded(
    without: str, names_path: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.json").write_text('{"model_config_list": [{"config": {"name": "a", "base_path": "none"}}]}')
    app = build(Config(config_path=str(tmp_path), without=without))
    try:
        serve._log_ready(app, ["http://[::]:8"])
    finally:
        await close(app)
    [record] = [record for record in caplog.records if record.name == "lean_ovms"]
    assert (record.levelname, record.message[:26]) == ("WARNING", "no model could be loaded, ")
    assert record.message.endswith(", or after POST /v1/config/reload") == names_path


async def checked(config: Config) -> None:
    """Runs the checks that a server makes before it listens."""
    app = build(config)
    assert app.services.manager is not None
    try:
        await app.services.manager.check()
    finally:
        await close(app)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_path": "empty"}, "empty is not a complete OpenVINO model: openvino_model.xml, "),
        ({"model_path": "empty"}, "it is empty; export a model with: optimum-cli export openvino --model NAME empty"),
        (
            {"model_path": "short"},
            "short/openvino_model.bin is truncated, with 3 of 28 bytes: copy, pull or export the model again",
        ),
        ({"model_path": "cut"}, "cut/openvino_model.xml is truncated: copy, pull or export the model again"),
        ({"model_path": "org/name"}, "no such directory; if org/name is a model on the hub, give it as source_model"),
        ({"api_key_file": "none"}, "--api_key_file none: No such file or directory"),
        ({"api_key_file": "file"}, "--api_key_file file: the first line is empty"),
        ({"config_path": "none"}, "the configuration file none does not exist"),
        ({"response_store": "none/store"}, "--response_store none/store: the directory "),
        ({"allowed_local_media_path": "none"}, "--allowed_local_media_path none: no such directory"),
        (
            {"override_generation_config": '{"temperature":-3}'},
            "--override_generation_config: temperature out of range",
        ),
        ({"cache_dir": "file/x"}, "--cache_dir file/x: Not a directory"),
        ({"prefix_cache_path": "file/x"}, "--prefix_cache_path file/x: Not a directory"),
        ({"slot_save_path": "file/x"}, "--slot_save_path file/x: Not a directory"),
        ({"prewarm": "none"}, "--prewarm none: No such file or directory"),
        ({"prewarm": "file"}, "--prewarm file: Expecting value"),
        (
            {"model_path": "none.gguf"},
            "there is no model at none.gguf: no such file; give a model's directory, a GGUF file",
        ),
        ({"model_path": "org/none.GGUF"}, "there is no model at org/none.GGUF: no such file"),
        ({"draft_model_path": "none.gguf"}, "--draft_model_path none.gguf: no such file"),
        ({"draft_model_path": "none"}, "--draft_model_path none: no such directory"),
        ({"draft_model_path": "empty"}, "--draft_model_path empty has no openvino_model.xml"),
        ({"draft_model_path": "x" * 300}, "xxx cannot be read: File name too long"),
        ({"allowed_local_media_path": "x" * 300}, "xxx: no such directory"),
        ({"lora_modules": "a=none"}, "--lora_modules: there is no adapter at none"),
        ({"max_model_len": 1_000_000}, "--max_model_len 1000000 exceeds the model's context length of 131072 tokens"),
        ({"tool_parser": "nope"}, "--tool_parser must be none or one of "),
        ({"chat_template": "{% if"}, "--chat_template: the chat template is invalid"),
    ],
)
async def test_what_no_engine_is_needed_for_is_checked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for folder in ("short", "cut"):
        (tmp_path / folder).mkdir()
        for name in ("openvino_tokenizer.xml", "openvino_detokenizer.xml"):
            (tmp_path / folder / name).write_text("<net/>")
    (tmp_path / "cut" / "openvino_model.xml").write_text(
        '<?xml version="1.0"?><net name="Model0" version="11"><layers>'
    )
    (tmp_path / "short" / "openvino_model.xml").write_text('<data element_type="f32" shape="5" offset="8" size="20" />')
    (tmp_path / "short" / "openvino_model.bin").write_bytes(b"abc")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WrongOptions) as error:
        await checked(Config(**options))
    assert message in str(error.value)


async def test_a_directory_that_has_been_checked_is_read_once() -> None:
    app = build(Config())
    assert app.services.manager is not None
    model = app.registry.models["demo"]
    try:
        await app.services.manager.check()
        read = model.directory
        await model._read_once()
        assert model.directory is read
        await model._read_once()
        assert model.directory is not read
    finally:
        await close(app)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        (("--model_repository_path", "models", "--model_name", "c"), {}, "has no model 'c'; its models are: a, org/b"),
        ((), {"OVMS_MODEL_REPOSITORY_PATH": "empty"}, "it is empty; put a model into it, or pull one"),
    ],
)
def test_what_points_to_no_model_is_not_answered_by_the_demo_model(
    tmp_path: Path, flags: tuple[str, ...], environ: dict[str, str], message: str
) -> None:
    """tests/features/deployment/test_desired.py has the other options that point to models."""
    (tmp_path / "empty").mkdir()
    for name in ("a", "org/b"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "openvino_model.xml").touch()
    done = run("--rest_port", "0", *flags, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), **environ})
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert message in line


@pytest.mark.slow
def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("--rest_port", str(port), "--fake_engine", "true")
    assert done.returncode == 1  # a supervisor should try again
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_second_server_takes_over_the_port_once_its_models_are_loaded(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lean_ovms", "--rest_bind_address", "127.0.0.1", "--fake_engine", "--reuse_port"]
    old_log, new_log = tmp_path / "old", tmp_path / "new"

    def until(process: subprocess.Popen[bytes], log: Path, words: str) -> str:
        while words not in (text := log.read_text()):
            assert process.poll() is None, text
            time.sleep(0.01)
        return text

    with old_log.open("wb") as out, subprocess.Popen([*command, "--rest_port", "0"], stderr=out) as old:
        port = re.search(r"listens on http://127\.0\.0\.1:(\d+)", until(old, old_log, "ready: "))[1]  # type: ignore[index]
        with new_log.open("wb") as out, subprocess.Popen([*command, "--rest_port", port], stderr=out) as new:
            try:
                text = until(new, new_log, "ready: ")
                assert text.index("is ready after") < text.index(f"listens on http://127.0.0.1:{port}")
                old.terminate()
                assert old.wait(300) == 0
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=300) as answer:
                    assert answer.status == 200
            finally:
                old.kill()
                new.kill()


@pytest.mark.model
def test_a_limit_of_address_space_is_named_whatever_fails_by_it() -> None:
    """A library that cannot be loaded, an allocation, or a thread: which one fails first varies."""
    command = [sys.executable, "-m", "lean_ovms", "--rest_port", "0", "--model_path", str(DEMO_MODEL)]
    limited = ["sh", "-c", 'ulimit -v 300000 && exec "$0" "$@"', *command]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=300)
    assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
    assert "0.3 GB of address space (ulimit -v" in done.stderr.splitlines()[-1]


def test_a_thread_that_cannot_be_started_ends_the_start_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(serve, "build", fails)
    monkeypatch.setattr(serve.log, "setup", lambda *_: None)
    monkeypatch.setattr(serve.resources, "configure_allocator", lambda: None)
    assert serve.run(Config(fake_engine=True)) == 3
    assert "cannot start: can't start new thread: no thread could be started" in caplog.text


INTERRUPTED = """
import os, signal, sys

class WhenImported:
    def find_spec(self, name, path, target=None):
        if name == "orjson":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, WhenImported())
sys.argv[1:] = ["--fake_engine", "true", "--rest_port", "0"]
from lean_ovms.cli.main import main
main()
"""


@pytest.mark.slow
def test_ctrl_c_while_all_is_imported_is_the_end_at_once() -> None:
    """An exception at this time crashes orjson."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.slow
def test_no_connection_takes_the_number_of_a_standard_stream_that_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    command = [sys.executable, "-m", "lean_ovms", "--fake_engine", "true", "--unix_socket", str(path)]
    server = subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command])
    try:
        deadline = time.monotonic() + 300
        with socket.socket(socket.AF_UNIX) as client:
            while client.connect_ex(str(path)) and time.monotonic() < deadline:
                time.sleep(0.02)
            client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")
            assert [os.readlink(f"/proc/{server.pid}/fd/{number}") for number in range(3)] == [os.devnull] * 3
        server.terminate()
        assert server.wait(300) == 0
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "connections"),
    [
        (1024, 524288, 1280, 1024),
        (1024, resource.RLIM_INFINITY, 1280, 1024),
        (4096, 4096, None, 1024),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, 1024),
        (256, 1024, 1024, 768),  # the rest is reserved, so that an engine can restart
        (64, 64, 64, 16),
    ],
)
def test_connections_leave_files_for_the_server_itself(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None, connections: int
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    assert serve._max_connections(1024) == connections
    assert set_to == ([] if raised is None else [(raised, hard)])


@pytest.mark.slow
def test_too_few_open_files_stop_the_start_in_one_line() -> None:
    command = [sys.executable, "-m", "lean_ovms", "--fake_engine", "true", "--rest_port", "0"]
    few = ["sh", "-c", 'ulimit -n 16 && exec "$@"', "sh", *command]
    done = subprocess.run(few, capture_output=True, text=True, check=False, timeout=300)
    line = "lean_ovms: cannot start: a server needs at least 32 open files; raise the limit (ulimit -n)\n"
    assert (done.returncode, done.stderr) == (3, line)


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "files"),
    [(16, 31, 31, 31), (16, 32, 32, 32), (16, resource.RLIM_INFINITY, 32, 32), (32, 32, None, 32),
     (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, 32)],
)  # fmt: skip
def test_a_low_soft_limit_of_open_files_is_raised(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None, files: int
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    assert resources.raise_open_files(32) == files
    assert set_to == ([] if raised is None else [(raised, hard)])


@pytest.mark.slow
def test_a_reader_of_a_list_may_have_enough() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "lean_ovms", "--list_models", "--model_repository_path", str(DEMO_MODEL.parent)]
    environ = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environ, check=False, timeout=300)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
