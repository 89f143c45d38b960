"""`lean-ovms launch AGENT [URL]`: starts a coding agent that uses a running server.

agents.json says what each agent needs. All of it is environment variables and arguments, which end with the agent; no
file of its user is read or written.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...cli.arguments import own, parse
from ...cli.commands import hint, parser, table
from ...errors import CommandFailed, ExitStatus, StartError
from ...server.checks import checked
from ..admin.client import connect, is_url

AGENTS: Mapping[str, dict[str, Any]] = json.loads(Path(__file__).with_name("agents.json").read_text("utf-8"))
"""The properties of each agent by the name of its program: how to install it, the approximate number of tokens in its
first prompt, its environment and arguments, and those for models whose context length is known. {url}, {model} and
{key} stand for the server's values, {context} for the model's context length in tokens, and {answer} and {prompt} for
the tokens that an answer and a prompt may have; 0 if unknown. With these an agent shortens a conversation before it is
too long. It gets them from `least_context` tokens on: Claude Code reserves 13,000 besides an answer, and would shorten
a prompt that fits."""
ANSWER = 4
"""The divisor of the context length for the length of an answer. Agents reserve room for an answer; their default may
be more than a small model has."""
NO_KEY = "none"
"""The key that an agent sends to a server without a key, since agents refuse to start without one."""
NOTES = """Arguments after -- go to the agent: lean_ovms launch claude -- -p "What is in this folder?". The settings are
passed as environment variables and arguments of this start only; none of your files is changed. Without URL, the agent
uses the server that runs with these options on this machine, such as --rest_port 9000. Without AGENT, all agents are
listed."""


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Replaces this process by the agent, or prints its command. Raises StartError or CommandFailed."""
    end = argv.index("--") if "--" in argv else len(argv)
    further = argv[end + 1 :]
    launch = parser("launch", NOTES)
    launch.add_argument("--model", default="", metavar="NAME", help="model of the server (default: its first one)")
    launch.add_argument("--print", action="store_true", help="only print the settings, as shell commands")
    given, words, options = own(launch, argv[:end])
    if not words:
        print(table([(name, agent["title"], _state(name, environ)) for name, agent in AGENTS.items()]))
        return ExitStatus.OK
    name, *words = words
    if name not in AGENTS:
        raise StartError(f"there is no agent {name} ({hint(name, AGENTS, 'there are ' + ', '.join(AGENTS))})")
    config = parse(options, environ)
    client = connect(words.pop(0) if words and is_url(words[0]) else "", config)
    if client.url.startswith("unix:"):
        raise StartError("an agent cannot use a Unix socket; start the server with a port")
    program = shutil.which(name, path=environ.get("PATH"))
    if program is None and not given.print:
        raise CommandFailed(f"{name} is not installed; to install it: {AGENTS[name]['install']}")
    model = client.asked_for(config, given.model, words)
    if words:
        raise StartError(f"unrecognized arguments: {' '.join(words)} (arguments for {name} must follow --)")
    context = next((row.get("max_model_len") for row in client.models() if row["id"] == model), None) or 0
    if 0 < context < (first := AGENTS[name]["first_prompt"]):
        title = AGENTS[name]["title"]
        note = f"the context of {model} has {context} tokens, but the first prompt of {title} has about {first}"
        print(f"lean_ovms launch: {note}", file=sys.stderr)
    server = {"{url}": client.url, "{model}": model, "{key}": checked(config).api_key or NO_KEY}
    added, arguments = _settings(AGENTS[name], server, context)
    command = [name, *arguments, *further]
    if program and not given.print:
        sys.stdout.flush()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores the signal, and the program would inherit this
        os.execve(program, command, {**environ, **added})  # noqa: S606 - no shell is meant
    lines = [f"export {key}={shlex.quote(value)}" for key, value in added.items()]
    print(*lines, shlex.join(command), sep="\n")
    return ExitStatus.OK


def _state(name: str, environ: Mapping[str, str]) -> str:
    return "installed" if shutil.which(name, path=environ.get("PATH")) else AGENTS[name]["install"]


def _settings(agent: Mapping[str, Any], server: Mapping[str, str], context: int) -> tuple[dict[str, str], list[str]]:
    """Returns the environment variables and the arguments of an agent.

    Args:
        agent: The properties of the agent.
        server: The values of the server for the placeholders.
        context: The model's context length in tokens; 0 if it is not known.
    """
    answer = context // ANSWER
    places: dict[str, str | int] = {**server, "{context}": context, "{answer}": answer, "{prompt}": context - answer}
    known = agent if context >= agent.get("least_context", 1) else {}
    variables = {**agent["environment"], **known.get("context_environment", {})}
    arguments = _filled([*agent["arguments"], *known.get("context_arguments", ())], places)
    return {name: _as_text(_filled(value, places)) for name, value in variables.items()}, arguments


def _filled(value: Any, places: Mapping[str, str | int]) -> Any:
    """Returns a JSON value with the placeholders replaced by the server's values, also in keys of objects.

    A string that consists only of the placeholder of a number becomes a number.
    """
    if isinstance(value, dict):
        return {_filled(key, places): _filled(one, places) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, places) for one in value]
    if value in places:
        return places[value]
    for place, text in places.items():
        value = value.replace(place, str(text))
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
