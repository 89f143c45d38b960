"""The child as a program, python -m lean_ovms.engine.worker, with the fake engine and once with the real one."""

import contextlib
import json
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.engine.loading import vocabulary
from lean_ovms.engine.paged.parts import NoGrammars
from lean_ovms.engine.protocol import Accepted, Decoder, Load, LoadFailed, Prefilled, Ready, Submit, Tokens, encode
from lean_ovms.engine.worker import __main__ as worker
from lean_ovms.engine.worker.text_model import load_text_model
from lean_ovms.errors import StartError
from lean_ovms.types import SamplingParams

pytestmark = pytest.mark.slow
"""Each test starts an engine process."""

ROOT = Path(__file__).parents[3]
VISION = ROOT / "tests" / "data" / "colours"
GRACE_S = 300.0
TRANSFORMATION = "lean_ovms.engine.paged.ir_weights.paged_attention_transformation"


class Child:
    """The other end of the pipe, and the process."""

    def __init__(self, sock, process):
        self.socket = sock
        self.process = process
        self.records = []
        self._decoder = Decoder()

    def send(self, *records):
        self.socket.sendall(encode(records))

    def next(self):
        while not self.records:
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError
            self.records += self._decoder.feed(data)
        return self.records.pop(0)

    def submit(self, prompt, request_id=1, **sampling):
        asked = SamplingParams(**{"temperature": 0.0, **sampling})
        self.send(Submit(request_id, prompt, False, None, False, asdict(asked)))

    def answer(self):
        """Returns the tokens of the only running request, to its end."""
        assert isinstance(self.next(), Accepted)
        tokens, record = [], self.next()
        if isinstance(record, Prefilled):
            record = self.next()
        while True:
            assert isinstance(record, Tokens)
            tokens += record.tokens
            if record.reason:
                return tokens
            record = self.next()

    def close(self):
        self.socket.close()
        return self.process.wait(GRACE_S)


@contextlib.contextmanager
def child(task="", **options):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-m", "lean_ovms.engine.worker", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        theirs.close()
        ours.settimeout(GRACE_S)
        try:
            found = Child(ours, process)
            if options:
                config = Config(**options)
                features = config.engine_features(config.composition.task(task))
                found.send(Load(config.for_engine(features), task, features))
            yield found
        finally:
            process.kill()
            process.communicate()


@pytest.fixture
def fake():
    with child(fake_engine=True, log_level="ERROR") as found:
        assert isinstance(found.next(), Ready)
        yield found


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def gone(pid):
    """Returns whether a process has ended; it may be a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_pipe_that_closes_before_the_first_frame_is_no_error():
    with child() as found:
        assert found.close() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_control_c_or_a_service_managers_stop_does_not_end_it_before_the_front_end_has_drained(fake, number):
    fake.process.send_signal(number)
    fake.submit("hello")
    assert bytes(fake.answer()[:-1]) == b"hello"
    assert fake.close() == 0
    assert fake.process.stderr.read() == ""


def test_an_engine_that_is_lost_fails_its_requests_and_exits_with_4():
    with child(fake_engine=True, plugin_config='{"recoverable": false}', log_level="ERROR") as found:
        assert isinstance(found.next(), Ready)
        found.submit("<|raise|>")
        assert isinstance(found.next(), Accepted)
        failed = found.next()
        assert failed.error[0] == "EngineFailure"
        assert found.process.wait(GRACE_S) == 4
        log = found.process.stderr.read()
        assert "scripted failure" in log
        assert "/somewhere/build" not in log


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model_path": "/nowhere"}, "/nowhere has no openvino_model.xml"),
        ({"fake_engine": True, "plugin_config": '{"x": 1}'}, "does not fit the fake engine"),
        ({"fake_engine": True, "plugin_config": '{"blocks": "1"}'}, "blocks is not of type int"),
        pytest.param({"plugin_config": '{"NO_SUCH_PROPERTY": 1}'}, "NO_SUCH_PROPERTY", marks=pytest.mark.model),
        pytest.param({"target_device": "NOSUCH"}, "NOSUCH", marks=pytest.mark.model),
    ],
)
def test_a_model_that_does_not_load_is_reported_in_one_line_and_exits_with_3(options, words):
    with child(**options) as found:
        record = found.next()
        assert isinstance(record, LoadFailed)
        assert words in record.message
        assert "\n" not in record.message
        assert "jenkins" not in record.message
        assert ".cpp" not in record.message
        assert found.process.wait(GRACE_S) == 3


PARENT = """
import os, socket, subprocess, sys
from dataclasses import asdict
from lean_ovms.config import Config
from lean_ovms.engine.protocol import Load, Submit, encode
from lean_ovms.types import SamplingParams
ours, theirs = socket.socketpair()
command = [sys.executable, "-m", "lean_ovms.engine.worker", str(theirs.fileno())]
engine = subprocess.Popen(command, pass_fds=[theirs.fileno()])
ours.sendall(encode([Load(Config(fake_engine=True).for_engine([]))]))
if sys.argv[1] == "hang":
    ours.recv(1 << 20)
    ours.sendall(encode([Submit(1, "<|hang|>", False, None, False, asdict(SamplingParams(seeds=(0,))))]))
    ours.recv(1 << 20)
print(engine.pid, flush=True)
sys.stdin.readline()
os._exit(1)
"""


@pytest.mark.parametrize("state", ["hang", "load"])
def test_it_dies_with_its_parent_even_while_it_computes_or_loads(state):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, state], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    end = time.monotonic() + GRACE_S
    while not gone(pid):
        assert time.monotonic() < end, "the child outlives its parent"
        time.sleep(0.01)


@pytest.mark.model
def test_the_real_engine_answers_and_leaves_without_a_word():
    with child(log_level="WARNING") as found:
        ready = found.next()
        assert isinstance(ready, Ready)
        assert ready.info["context_length"] > 0
        assert set(ready.info["versions"]) >= {"openvino", "openvino_genai"}
        found.submit("<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n")
        assert found.answer()[-1] in ready.info["eos_token_ids"]
        for _ in range(20):  # at first a thread may still be replacing small pages by large ones
            before = cpu_s(found.process.pid)
            time.sleep(0.3)
            if cpu_s(found.process.pid) - before < 0.03:
                break
        else:
            raise AssertionError("an idle engine uses CPU time")
        threads = len(list(Path(f"/proc/{found.process.pid}/task").iterdir()))
        assert threads < 20
        assert found.close() == 0
        assert found.process.stderr.read() == ""


def unpageable(model, **options):
    raise RuntimeError("no attention is known here")


def inexact(model_dir, tokenizer, library=None):
    return replace(vocabulary.read(model_dir), exact=False)


@pytest.mark.model
def test_openvino_genai_serves_what_the_paged_engine_turns_out_not_to(monkeypatch, caplog):
    monkeypatch.setattr(TRANSFORMATION, unpageable)
    found = load_text_model(Config(max_model_len=256))
    assert type(found.pipeline).__name__ == "ContinuousPipeline"
    assert found.info.pipeline == "LM_CB"
    reason = "cannot be converted to paged attention: no attention is known here"
    assert reason in found.info.pipeline_reason
    [told] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert reason in told
    assert "logit_bias" in told


@pytest.mark.model
def test_tokens_of_uncertain_texts_cost_no_more_than_grammars(monkeypatch, caplog):
    monkeypatch.setattr(vocabulary, "build", inexact)
    found = load_text_model(Config(max_model_len=256))
    assert (type(found).__name__, found.info.pipeline) == ("PagedPipeline", "PAGED")
    assert isinstance(found.grammars, NoGrammars)
    assert "schemas, grammars and required tool calls are refused" in caplog.text


@pytest.mark.model
def test_tokenizers_that_differ_do_not_keep_a_model_from_the_paged_engine(tmp_path):
    shutil.copytree(Config().model_dir, tmp_path / "model")
    file = tmp_path / "model" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["normalizer"] = {"type": "Prepend", "prepend": "z"}
    file.write_text(json.dumps(tokenizer))
    found = load_text_model(Config(model_path=str(tmp_path / "model"), max_model_len=256))
    assert found.info.pipeline == "PAGED"
    assert not isinstance(found.grammars, NoGrammars)
    assert found.encode("z", False) != found.encode("zz", False)


@pytest.mark.model
def test_a_network_that_cannot_be_paged_stops_the_start_when_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(TRANSFORMATION, unpageable)
    with pytest.raises(
        StartError,
        match="PAGED: its attention cannot be converted to paged attention: no attention is known here; LM_CB can",
    ):
        load_text_model(Config(pipeline_type="PAGED"))


@pytest.mark.model
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vision_config": {"image_size": 32, "patch_size": 16}}, "an image of 4 tokens was encoded to 16"),
        ({"image_token_index": 5000}, "its tokenizer has no image placeholder token"),
    ],
)
def test_other_models_with_vision_are_served_by_openvino_genai(changes, reason, tmp_path):
    shutil.copytree(VISION, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    found = load_text_model(Config(model_path=str(tmp_path / "model")))
    assert found.info.pipeline == "VLM_CB"
    assert reason in found.info.pipeline_reason


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, list[list[LoadFailed]]]]:
    """Returns a function of a loader that serves in this process. It returns the exit status and what was sent."""

    def serve(load: Callable[..., object]) -> tuple[int, list[list[LoadFailed]]]:
        sent: list[list[LoadFailed]] = []
        transport = SimpleNamespace(receive=lambda wait: [Load({})], send=sent.append, know=lambda _: None, wake=None)
        for owner, name, value in (
            (worker, "keep_only", lambda _: None),  # the process of the tests has all features
            (worker.logs, "setup", lambda *_, **__: None),
            (worker, "named", lambda *_: load),
            (worker, "gc", SimpleNamespace(collect=int, freeze=int, disable=int, enable=int)),
            (worker.weight_pages, "replace_small_pages", lambda: None),
            (worker.weight_pages, "_files", {}),
        ):
            monkeypatch.setattr(owner, name, value)
        return worker.serve(transport), sent

    return serve


def test_a_model_for_which_memory_is_too_little_is_reported_as_that(serve: Callable[..., Any]) -> None:
    """The report is sent even if nothing else can be found out, because that takes memory too."""

    def load(*_: object) -> None:
        raise MemoryError

    status, [[failed]] = serve(load)
    assert status == worker.EXIT_NOT_LOADED
    assert failed.message.startswith("the model does not load: there is not enough memory")


def test_weights_that_change_under_any_task_end_its_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Callable[..., Any]
) -> None:
    """The task's loader maps the file, as openvino-genai's pipelines do."""
    file = tmp_path / "openvino_model.bin"
    file.write_bytes(b"old")

    class Overwriting:
        def __init__(self, _task: object, _transport: object, check: Callable[[], None]) -> None:
            self.check = check

        def run(self) -> None:
            self.check()
            file.write_bytes(b"other")
            self.check()

    monkeypatch.setattr(worker, "Worker", Overwriting)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ):
        assert serve(lambda *_: SimpleNamespace(ready=str, close=str))[0] == worker.EXIT_BROKEN
