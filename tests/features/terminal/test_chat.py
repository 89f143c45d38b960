"""lean-ovms chat: one answer to a prompt or to stdin, and a conversation on a pseudo-terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lean_ovms.cli.commands import commands
from lean_ovms.cli.main import run_command
from lean_ovms.errors import CommandFailed
from lean_ovms.features.admin.client import ServerClient
from lean_ovms.features.terminal.chat import Conversation, _command
from tests.cli.scripted import ScriptedServer

CHAT = "/v1/chat/completions"
PIXEL = b"\x89PNG\r\n\x1a\n"


class Stdin(io.StringIO):
    def __init__(self, text: str = "", *, terminal: bool = False) -> None:
        super().__init__(text)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Runs the command with this text at stdin. Returns the exit status."""

    def run(*argv: str, stdin: str = "", terminal: bool = False) -> int:
        monkeypatch.setattr(sys, "stdin", Stdin(stdin, terminal=terminal))
        return run_command(commands()["chat"], argv, {})

    before = signal.getsignal(signal.SIGINT)
    yield run
    signal.signal(signal.SIGINT, before)


def test_a_prompt_is_answered_once(
    script: ScriptedServer, chat: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    script.stream(CHAT, {"role": "assistant", "content": None}, {"reasoning_content": "Hm."}, {"content": "Pa"},
                  {"content": "ris"})  # fmt: skip
    argv = (f"{script.url}/v1/", "--system", "Be short.", "--temp", "0.5", "--api-key", "k", "What", "else?")
    assert chat(*argv, terminal=True) == 0
    assert capsys.readouterr().out == "Paris\n"
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What else?"}]
    assert script.bodies == [{"model": "m", "messages": messages, "temperature": 0.5, "stream": True}]
    assert script.headers[0]["Authorization"] == "Bearer k"


@pytest.mark.parametrize(
    ("argv", "model", "prompt"),
    [
        (["URL", "other", "Hi"], "other", "Hi"),
        (["URL", "another", "Hi"], "m", "another Hi"),
        (["URL", "-hf", "org/m:Q4_0", "other"], "org/m", "other"),
        (["URL", "--model", "other", "other"], "other", "other"),
        (["URL", "--served-model-name", "other", "--temp", "1", "Hi"], "other", "Hi"),
    ],
)
def test_a_model_of_the_server_is_named(
    argv: list[str], model: str, prompt: str, script: ScriptedServer, chat: Callable[..., int]
) -> None:
    rows = [{"id": name, "task": "text_generation"} for name in ("m", "other", "org/m")]
    script.answers["/v1/models"] = deque([{"data": rows}])
    script.stream(CHAT, {"content": "Yes."})
    assert chat(*(word.replace("URL", script.url) for word in argv), terminal=True) == 0
    assert (script.bodies[0]["model"], script.bodies[0]["messages"][-1]["content"]) == (model, prompt)


def test_verbose_says_how_fast_an_answer_came(
    script: ScriptedServer, chat: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    deltas = [{"choices": [{"delta": {"content": text}}]} for text in ("a", "b")]
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 32}}
    script.answers[CHAT] = deque([[*deltas, usage]])
    assert chat(script.url, "--verbose", "Hi", terminal=True) == 0
    printed = capsys.readouterr()
    assert printed.out == "ab\n"
    assert re.fullmatch(r"1 prompt token, 32 tokens, first after \d+ ms, [\d.]+ tokens/s\n", printed.err)
    assert script.bodies[0]["stream_options"] == {"include_usage": True}


def test_text_at_stdin_goes_behind_the_prompt(
    script: ScriptedServer, chat: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    script.stream(CHAT, {"content": "\x1b[2J line\n"})
    assert chat(script.url, "Summarize:", stdin="a file\n") == 0
    assert script.bodies[0]["messages"][-1]["content"] == "Summarize:\n\na file\n"
    assert capsys.readouterr().out == "\x1b[2J line\n"  # output to a file is unchanged


@pytest.fixture
def conversation(script: ScriptedServer) -> Conversation:
    return Conversation(ServerClient(script.url), "m", "Be short.", {"seed": 1})


def commanded(conversation: Conversation, line: str) -> None:
    assert _command(conversation, line) == ""


def test_fields_are_set_for_all_further_requests(
    script: ScriptedServer, conversation: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in ("temperature 0.5", "parameter stop END", "seed", 'chat_template_kwargs {"enable_thinking": false}'):
        commanded(conversation, f"/set {line}")
    commanded(conversation, "/set")
    fields = {"temperature": 0.5, "stop": "END", "chat_template_kwargs": {"enable_thinking": False}}
    assert json.loads(capsys.readouterr().out) == fields
    script.stream(CHAT, {"content": "Yes."})
    conversation.ask("Hi")
    assert fields.items() <= script.bodies[0].items()
    assert "seed" not in script.bodies[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/set temprature 1", "there is no field temprature to set (did you mean temperature?)"),
        ("/set messages []", "there is no field messages to set (docs/fields.md lists them)"),
        ("/set temperature 3", "temperature out of range"),
        ("/set temperature warm", "temperature is not a valid number"),
        ("/retry", "nothing has been asked yet"),
        ("/model x", "URL has no model x; its models are: embedder, m"),
        ("/save", "/save FILE"),
        ("/save /no/such/file", "/no/such/file: No such file or directory"),
    ],
)
def test_a_command_that_cannot_be_done_says_why(
    line: str, message: str, script: ScriptedServer, conversation: Conversation
) -> None:
    with pytest.raises(CommandFailed, match=re.escape(message.replace("URL", script.url))):
        _command(conversation, line)
    assert conversation.fields == {"seed": 1}


def test_a_retried_question_gets_another_answer(script: ScriptedServer, conversation: Conversation) -> None:
    script.stream(CHAT, {"content": "Red"})
    script.answers[CHAT] += [(503, {"error": {"message": "busy"}})]
    script.stream(CHAT, {"content": "Blue"})
    script.stream(CHAT, {"content": "Green"})
    conversation.ask("A colour?")
    asked = script.bodies[0]["messages"]
    with pytest.raises(CommandFailed, match="busy"):
        commanded(conversation, "/retry")
    assert conversation.request()["messages"] == [*asked, {"role": "assistant", "content": "Red"}]
    commanded(conversation, "/retry")
    assert [body["messages"] for body in script.bodies] == [asked] * 3
    assert conversation.request()["messages"] == [*asked, {"role": "assistant", "content": "Blue"}]
    commanded(conversation, "/clear")
    with pytest.raises(CommandFailed, match="nothing has been asked yet"):
        commanded(conversation, "/retry")
    script.answers[CHAT] = deque([(503, {"error": {"message": "busy"}})])
    script.stream(CHAT, {"content": "Red"})
    with pytest.raises(CommandFailed, match="busy"):
        conversation.ask("A colour?")
    commanded(conversation, "/retry")  # of a question that got no answer
    assert [message["content"] for message in conversation.request()["messages"]] == ["Be short.", "A colour?", "Red"]


def test_another_model_answers_and_the_conversation_is_saved(
    script: ScriptedServer, conversation: Conversation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commanded(conversation, "/model")
    assert capsys.readouterr().out == "embedder\nm (answers here)\n"
    commanded(conversation, "/model embedder")
    script.stream(CHAT, {"content": "é"})
    conversation.ask("Hi")
    file = tmp_path / "a b.json"
    commanded(conversation, f"/save {file}")
    assert json.loads(file.read_text("utf-8")) == {
        "seed": 1,
        "model": "embedder",
        "messages": [*script.bodies[0]["messages"], {"role": "assistant", "content": "é"}],
    }
    with pytest.raises(CommandFailed, match="File exists"):
        commanded(conversation, f"/save {file}")


# --- on a terminal


class Terminal:
    """A process on a pseudo-terminal. `output` has what it has printed since the last `read_to`."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process = process
        self._fd = fd
        self._output = b""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def interrupt(self, end: str) -> None:
        """Types Ctrl-C until this text is printed. Python loses a Ctrl-C that comes just before it waits for input."""
        self.type("\x03")
        while end.encode() not in self._output:
            if select.select([self._fd], [], [], 20)[0]:
                self._output += os.read(self._fd, 4096)
            else:
                self.type("\x03")
        self._output = b""

    def read_to(self, end: str) -> str:
        """Returns what is printed up to this text."""
        while end.encode() not in self._output:
            try:
                data = os.read(self._fd, 4096)
            except OSError:  # the process has ended
                data = b""
            assert data, f"ended without {end!r}: {self._output.decode()}"
            self._output += data
        found, _, self._output = self._output.partition(end.encode())
        return found.decode() + end


@contextmanager
def terminal(directory: Path, *argv: str) -> Iterator[Terminal]:
    parent, child = pty.openpty()
    env = os.environ | {"XDG_STATE_HOME": str(directory), "TERM": "dumb", "INPUTRC": os.devnull}
    process = subprocess.Popen(
        [sys.executable, "-m", "lean_ovms", *argv],
        stdin=child,
        stdout=child,
        stderr=child,
        env=env,
        start_new_session=True,
        preexec_fn=lambda: controlling(child),
    )
    os.close(child)
    try:
        yield Terminal(process, parent)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(parent)


def controlling(fd: int) -> None:
    """Makes the terminal the controlling one of the process, so that Ctrl-C reaches it."""
    import fcntl
    import termios

    fcntl.ioctl(fd, termios.TIOCSCTTY, 0)


@pytest.mark.slow
def test_a_conversation_on_a_terminal(script: ScriptedServer, tmp_path: Path) -> None:
    (tmp_path / "a b.png").write_bytes(PIXEL)
    with terminal(tmp_path, "chat", script.url) as user:
        user.read_to(">>> ")
        script.stream(CHAT, {"reasoning_content": "Hm. "}, {"reasoning": "So."}, {"content": "Hi\x1b]0;t\x07!"})
        user.type("one\\\n")
        user.read_to("... ")
        user.type("two\n")
        # Thinking is dim, and control characters are removed.
        assert "\x1b[2mHm. So.\x1b[0m\r\n\r\nHi]0;t!\r\n" in user.read_to(">>> ")
        assert script.bodies[-1]["messages"] == [{"role": "user", "content": "one\ntwo"}]

        script.stream(CHAT, {"content": "Seen"}, None)
        user.type(f'/image "{tmp_path}/a b.png" What is it?\n')
        user.read_to("Seen")
        user.interrupt(">>> ")  # stops the answer, which stays in the conversation
        assert script.left.wait(60)
        [image, text] = script.bodies[-1]["messages"][-1]["content"]
        assert image["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="
        assert text == {"type": "text", "text": "What is it?"}

        script.answers[CHAT].append((503, {"error": {"message": "busy"}}))
        user.type('"""\na\nb\n"""\n')
        user.read_to("503 Service Unavailable: busy")
        assert [message["content"] for message in script.bodies[-1]["messages"]][-2:] == ["Seen", "a\nb"]

        script.stream(CHAT, {"content": "Meow."})
        user.type("/system You are a cat\nhello\n")
        user.read_to("Meow.")
        assert script.bodies[-1]["messages"] == [
            {"role": "system", "content": "You are a cat"},
            {"role": "user", "content": "hello"},
        ]
        user.type("/imagine x\n")
        user.read_to("there is no command /imagine (did you mean /image?)")
        user.type("/image /no/such.png\n")
        user.read_to("/no/such.png: No such file or directory")
        user.type("/image\n")
        user.read_to("/image PATH [TEXT]")
        user.type("/help\n")
        user.read_to("Ctrl-C stops an answer.")
        user.read_to(">>> ")
        user.interrupt(">>> ")
        user.type("\x04")  # ends the command
    history = tmp_path / "lean_ovms" / "chat_history"
    assert history.stat().st_mode & 0o77 == 0
    assert "/system You are a cat\nhello\n" in history.read_text()


def test_a_name_that_no_host_can_have_is_no_answer() -> None:
    with pytest.raises(CommandFailed, match=r"no answer from http://a\.\.b: "):
        ServerClient("http://a..b").models()
