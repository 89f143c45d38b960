"""What --help prints: the most used options, one group of options, or all of them."""

from __future__ import annotations

from collections.abc import Callable

from ..config import GROUPS, shown
from ..errors import StartError

COMMON = (
    "model_path", "source_model", "model_repository_path", "config_path", "model_name", "rest_port",
    "rest_bind_address", "api_key_file", "target_device", "cache_size", "max_model_len", "max_tokens_limit",
    "chat_template", "tool_parser", "reasoning_parser", "metrics_enable", "log_level",
)  # fmt: skip
"""The options that a first start needs, in this order."""

EXAMPLES = """examples:
  lean_ovms                                      the demo model, on port 8000
  lean_ovms serve ./Qwen3-8B-int4-ov             a directory that optimum-cli wrote
  lean_ovms serve OpenVINO/Qwen3-8B-int4-ov      a model of the hub, pulled at the first start
  lean_ovms healthcheck --rest_port 8000         exit status 0 if the server with these options is ready
"""
ALL = "all"


def text(topic: str, render: Callable[[tuple[str, ...]], str]) -> str:
    """Returns the help for a topic: "" for the most used options, all, a group or an option. render: makes their help.

    Raises StartError for another topic.
    """
    names = {row.name: row.metadata["group"] for row in shown()}
    topic = topic.lstrip("-").replace("-", "_")
    if not topic:
        more = f"more options: --help={ALL}, or --help=GROUP with one of {', '.join(GROUPS)}\n"
        return f"{render(COMMON)}\n{EXAMPLES}\n{more}"
    chosen = tuple(name for name, group in names.items() if topic in (ALL, group, name))
    if not chosen:
        raise StartError(f"--help={topic}: the topics are {ALL}, {', '.join(GROUPS)}, and the name of an option")
    return render(chosen)
