"""`lean-ovms chat [URL] [PROMPT]`: a chat in the terminal with a running server.

With a prompt, or with text on stdin, it prints one answer and ends. `talk` is the chat itself, which `run` uses, too.
"""

from __future__ import annotations

import base64
import contextlib
import json
import mimetypes
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...cli.arguments import own, parse
from ...cli.commands import CommandParser, hint, parser, value_of
from ...config.options import read_object
from ...errors import BadRequest, CommandFailed, ExitStatus, StartError, counted
from ..admin.client import ServerClient, connect, is_url

PROMPT, MORE = ">>> ", "... "
TEXTS = ("content", "reasoning_content", "reasoning")
"""The members of a delta that are text."""
RATED = 32
"""The number of tokens of an answer from which on its speed is meaningful."""
QUOTES = '"""'
PATIENCE_S = 3600.0
"""Seconds without a token after which the answer counts as lost. A long prompt on a small machine takes its time."""
MAX_IMAGE_BYTES = 64 << 20
HISTORY_LINES = 1000
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])
"""The control characters that are not printed: a model's text must not move the cursor or set the window's title."""

HELP = f"""/system TEXT           set the system prompt, and begin anew
/image PATH [TEXT]     send an image with the next message, or with this text
/set [NAME [VALUE]]    set a field of all further requests, such as temperature 0.5; without a value, unset it;
                       without a name, show what is set
/retry                 ask the last question again; the new answer takes the place of the old one
/model [NAME]          let another model of the server answer from now on; without a name, list them
/save FILE             write the conversation to a new file, as a request that can be sent to the server
/clear                 forget the conversation
/help                  show this
/bye                   end; so does Ctrl-D

A backslash at the end of a line continues the message; so does {QUOTES} until the next {QUOTES}.
Ctrl-C stops an answer."""
NOTES = """With PROMPT, or text on stdin, the command prints one answer and exits. MODEL is a model of the server
(default: its first one). Without URL, the command uses the server that runs with these options on this
machine, such as --rest_port 9000. Sampling options such as --temp, --top-p, --top-k, --min-p and --seed
apply to each message."""


def arguments(name: str, notes: str) -> CommandParser:
    """Returns the parser of the own arguments of `chat` and `run`."""
    result = parser(name, notes)
    result.add_argument("--verbose", action="store_true", help="show the speed of each answer")
    result.add_argument("--system", default="", metavar="TEXT", help="system prompt")
    return result


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs the command, and returns the exit status. Raises StartError or CommandFailed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chat_parser = arguments("chat", NOTES)
    chat_parser.add_argument("--model", default="", metavar="NAME", help="model of the server (default: its first one)")
    given, words, options = own(chat_parser, argv)
    url = words.pop(0) if words and is_url(words[0]) else ""
    config = parse(options, environ)
    client = connect(url, config)
    fields = read_object("override_generation_config", config.override_generation_config)
    model = client.asked_for(config, given.model, words)
    conversation = Conversation(client, model, given.system, fields, verbose=given.verbose)
    return talk(conversation, prompt_of(words), environ)


def prompt_of(words: Sequence[str]) -> str:
    """Returns the prompt in the words or on stdin, or "" for a chat on a terminal. Raises StartError without any."""
    prompt = " ".join(words)
    if sys.stdin.isatty():
        return prompt
    text = "\n\n".join(filter(None, [prompt, sys.stdin.read()]))
    if not text.strip():
        raise StartError("there is no prompt: give it after the model, or as text on stdin")
    return text


def talk(conversation: Conversation, prompt: str, environ: Mapping[str, str]) -> int:
    """Answers one prompt, or chats if it is empty. Returns the exit status. Raises CommandFailed, KeyboardInterrupt."""
    conversation.client.timeout_s = PATIENCE_S
    if not prompt:
        print(f"{conversation.model}: /help shows the commands, Ctrl-D ends")
        with _history(environ):
            _loop(conversation)
        return ExitStatus.OK
    conversation.ask(prompt)
    return ExitStatus.OK


class Conversation:
    """The messages of a chat, with the other fields of each request."""

    def __init__(
        self, client: ServerClient, model: str, system: str, fields: Mapping[str, Any], *, verbose: bool = False
    ) -> None:
        self.client = client
        self.model = model
        self.fields = dict(fields)
        self._verbose = verbose
        self._messages: list[dict[str, Any]] = []
        self._images: list[str] = []
        self._asked: dict[str, Any] = {}
        self.clear(system)

    def clear(self, system: str | None = None) -> None:
        """Removes all messages, and replaces the system prompt unless it is None."""
        if system is not None:
            self._system = [{"role": "system", "content": system}] if system else []
        self._messages, self._images, self._asked = [], [], {}

    def add_image(self, path: str) -> None:
        """Adds an image, given as a file or a URL, to the next message. Raises CommandFailed."""
        if is_url(path):
            self._images.append(path)
            return
        kind = mimetypes.guess_type(path)[0] or ""
        try:
            data = Path(path).expanduser().read_bytes()
        except OSError as error:
            raise CommandFailed(f"{path}: {error.strerror}") from None
        if not kind.startswith("image/") or len(data) > MAX_IMAGE_BYTES:
            raise CommandFailed(f"{path} is not an image of at most {MAX_IMAGE_BYTES >> 20} MiB")
        self._images.append(f"data:{kind};base64,{base64.b64encode(data).decode()}")

    def ask(self, text: str) -> None:
        """Sends a message, and prints the answer as it arrives. Raises CommandFailed or KeyboardInterrupt.

        If there is an error or Ctrl-C before any text, the message is removed.
        """
        images = [{"type": "image_url", "image_url": {"url": url}} for url in self._images]
        content = [*images, {"type": "text", "text": text}] if images else text
        self._send(self._messages, {"role": "user", "content": content})

    def retry(self) -> None:
        """Sends the last message again, even if it was not answered. Raises CommandFailed or KeyboardInterrupt.

        The new answer replaces the previous one, which is kept if none comes.
        """
        if not self._asked:
            raise CommandFailed("nothing has been asked yet")
        answered = self._messages[-2:-1] == [self._asked]
        self._send(self._messages[:-2] if answered else self._messages, self._asked)

    def request(self) -> dict[str, Any]:
        """Returns the body of the request for the conversation so far."""
        return {**self.fields, "model": self.model, "messages": [*self._system, *self._messages]}

    def _send(self, before: list[dict[str, Any]], message: dict[str, Any]) -> None:
        """Sends a message after the given ones, and prints the answer, with which they become the conversation."""
        self._asked = message
        body = {**self.request(), "messages": [*self._system, *before, message]}
        if self._verbose:
            body["stream_options"] = {"include_usage": True}
        answer, speed = "", AnswerSpeed()
        try:
            with self.client.stream("/v1/chat/completions", body) as events:
                for piece in _printed(speed.watched(events)):
                    answer += piece
            if self._verbose:
                print(speed.line(), file=sys.stderr)
        finally:
            if answer:
                self._messages = [*before, message, {"role": "assistant", "content": answer}]
                self._images = []


class AnswerSpeed:
    """Measures the speed of an answer."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._first = self._last = 0.0
        self._usage: Mapping[str, Any] = {}

    def watched(self, events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yields the events, and records when they arrived and their token counts."""
        for event in events:
            if any((choice.get("delta") or {}).get(name) for choice in event.get("choices", ()) for name in TEXTS):
                self._last = time.perf_counter() - self._began
                self._first = self._first or self._last
            self._usage = event.get("usage") or self._usage
            yield event

    def line(self) -> str:
        """Returns the measurements as a line of text."""
        prompt, tokens = self._usage.get("prompt_tokens", 0), self._usage.get("completion_tokens", 0)
        parts = [counted(prompt, "prompt token"), counted(tokens, "token"), f"first after {1000 * self._first:.0f} ms"]
        if tokens >= RATED and self._last > self._first:
            parts.append(f"{(tokens - 1) / (self._last - self._first):.1f} tokens/s")
        return ", ".join(parts)


def _printed(events: Iterator[dict[str, Any]]) -> Iterator[str]:
    """Prints an answer as it arrives, and yields its texts. The reasoning is dim on a terminal, else omitted."""
    terminal = sys.stdout.isatty()
    dim, ended = False, True
    try:
        for event in events:
            for choice in event.get("choices", ()):
                delta = choice.get("delta") or {}
                thought, text = delta.get("reasoning_content") or delta.get("reasoning"), delta.get("content")
                if thought and terminal:
                    sys.stdout.write(("" if dim else DIM) + thought.translate(CONTROLS))
                    dim = True
                if text:
                    yield text  # before it is shown, so that Ctrl-C does not lose shown text
                    sys.stdout.write((f"{PLAIN}\n\n" if dim else "") + (text.translate(CONTROLS) if terminal else text))
                    dim, ended = False, text.endswith("\n")
                if choice.get("finish_reason") == "length" and terminal:
                    sys.stdout.write(f"{PLAIN}\n{DIM}(the answer was cut: no room for more tokens){PLAIN}")
                sys.stdout.flush()
    finally:
        sys.stdout.write((PLAIN if dim else "") + ("" if ended and not dim else "\n"))
        sys.stdout.flush()


def _loop(conversation: Conversation) -> None:
    """Reads messages and commands until Ctrl-D or /bye."""
    while True:
        try:
            text = _read()
            if text.strip() == "/bye":
                return
            if text.startswith("/"):
                text = _command(conversation, text)
            if text.strip():
                conversation.ask(text)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
        except CommandFailed as error:
            print(error)


def _read() -> str:
    """Reads a message of one or more lines. Raises EOFError or KeyboardInterrupt."""
    line = input(PROMPT)
    if line.startswith(QUOTES):
        text = line.removeprefix(QUOTES)
        while QUOTES not in text:
            text += "\n" + input(MORE)
        return text.partition(QUOTES)[0].strip("\n")
    while line.endswith("\\"):
        line = line[:-1] + "\n" + input(MORE)
    return line


def _command(conversation: Conversation, line: str) -> str:
    """Runs a command of the chat. Returns a message to send; "" if there is none. Raises CommandFailed."""
    name, _, rest = line.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise CommandFailed(f"there is no command {name} ({hint(name, COMMANDS, '/help lists them')})")
    return command(conversation, rest.strip()) or ""


def _attach(conversation: Conversation, rest: str) -> str:
    """Adds an image, and returns the text after its path."""
    try:
        path, *words = shlex.split(rest)
    except ValueError:
        raise CommandFailed("/image PATH [TEXT]; quote a path with spaces") from None
    conversation.add_image(path)
    return " ".join(words)


def _set(conversation: Conversation, rest: str) -> None:
    """Sets or removes a field of further requests, or prints the fields that are set."""
    from ...api.fields import FieldSet, read_one  # late, because a single prompt needs none of these modules
    from ...api.generation.common_fields import TEMPLATE_KWARGS
    from ...api.generation.sampling import SAMPLING

    name, _, text = rest.removeprefix("parameter ").partition(" ")  # Ollama has the word "parameter" here
    known = FieldSet((*SAMPLING, TEMPLATE_KWARGS))
    if not name:
        print(json.dumps(conversation.fields))
    elif name not in known.places:
        raise CommandFailed(
            f"there is no field {name} to set ({hint(name, known.places, 'docs/fields.md lists them')})"
        )
    elif not text:
        conversation.fields.pop(name, None)
    else:
        value = value_of(text)
        try:
            read_one(known.named(name), value)
        except BadRequest as error:
            raise CommandFailed(error.message) from None
        conversation.fields[name] = value


def _choose_model(conversation: Conversation, name: str) -> None:
    """Switches to another model, or lists the models of the server."""
    if name:
        conversation.model = conversation.client.model(name)
        return
    for row in conversation.client.models():
        print(f"{row['id']} (answers here)" if row["id"] == conversation.model else row["id"])


def _save(conversation: Conversation, path: str) -> None:
    """Saves the conversation to a file that must not exist yet."""
    if not path:
        raise CommandFailed("/save FILE")
    try:
        with Path(path).expanduser().open("x", encoding="utf-8") as file:
            json.dump(conversation.request(), file, ensure_ascii=False, indent=2)
            file.write("\n")
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}") from None


COMMANDS: Mapping[str, Callable[[Conversation, str], str | None]] = {
    "/system": Conversation.clear,
    "/image": _attach,
    "/set": _set,
    "/retry": lambda conversation, _: conversation.retry(),
    "/model": _choose_model,
    "/save": _save,
    "/clear": lambda conversation, _: conversation.clear(),
    "/help": lambda *_: print(HELP),
    "/bye": lambda *_: None,
}
"""The function of each command of a chat. It is given the text after the command, and returns a message to send."""


@contextmanager
def _history(environ: Mapping[str, str]) -> Iterator[None]:
    """Enables the history of typed lines, also across chats, on systems with readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    state = Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    file = state / "lean_ovms" / "chat_history"
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT, 0o600))
        readline.read_history_file(file)
    readline.set_history_length(HISTORY_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            readline.write_history_file(file)
