"""How to start other servers for `rivals`. Recipes, not dependencies: what is not installed is not needed.

{model} is the model's folder, {port} the port that the benchmark has chosen.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Recipe:
    """A command; the path that answers 200 when it is ready; fields that its requests need; a note."""

    command: str
    ready: str = "/v1/models"
    fields: dict[str, object] = field(default_factory=dict)
    about: str = ""


RECIPES = {
    "plain": Recipe(
        f"{sys.executable} -m bench.plain_server {{model}} {{port}}",
        ready="/health",
        about="FastAPI, uvicorn and LLMPipeline with a streamer: what one would write otherwise. Kept here.",
    ),
    "vllm": Recipe(
        "vllm serve {model} --port {port} --served-model-name demo --dtype bfloat16 --max-model-len 4096",
        ready="/health",
        about="pip install vllm (a CPU build). {model} must be the Hugging Face folder: pass it with NAME=COMMAND.",
    ),
    "llama-cpp-python": Recipe(
        f"{sys.executable} -m llama_cpp.server --model {{model}} --port {{port}} --model_alias demo --n_ctx 4096",
        about="pip install 'llama-cpp-python[server]'. The model is a GGUF file: pass it with NAME=COMMAND.",
    ),
}
"""OVMS: start it as its documentation says and pass --rival ovms=http://127.0.0.1:8000 --path /v3/chat/completions."""
