"""Which parsers a model needs, told from the source of its chat template.

The rules are OVMS's (plain substrings, first match wins) with the families beyond it placed where OVMS's rule would
choose a parser that cannot read the format, or none.
"""

from __future__ import annotations

from collections.abc import Callable

_THINK = ("<think>", "content.split('</think>')", 'content.split("</think>")')


def _has(*marks: str) -> Callable[[str], bool]:
    return lambda source: all(mark in source for mark in marks)


def _has_any(*marks: str) -> Callable[[str], bool]:
    return lambda source: any(mark in source for mark in marks)


_Rule = tuple[Callable[[str], bool], str | None, str | None, tuple[str, ...]]

_RULES: tuple[_Rule, ...] = (
    # (the template has, tool parser, reasoning parser, which needs one of these as well)
    (_has("<|channel|>"), "gptoss", "gptoss", ()),
    (_has("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"), "onyx", "onyx", ()),
    (_has("<|tool_call>call:"), "gemma4", "gemma4", ()),
    (_has("<parameter=", "</parameter>", "<function="), "qwen3coder", "qwen3", ("<think>", "</think>")),
    (_has('<param name="'), "minicpm5", "minicpm5", ()),
    (
        _has_any("<|assistant_tool_call|>", "<|tool_call_start|>", "keep_past_thinking"),
        "lfm2",
        "lfm2",
        ("message.thinking",),
    ),
    (_has("functools"), "phi4", None, ()),
    (_has("[TOOL_CALLS]", "[ARGS]"), "devstral", None, ()),
    (_has("[TOOL_CALLS]"), "mistral", None, ()),
    (_has("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"), "mistral", None, ()),
    (_has("<|python_tag|>"), "llama3", None, ()),
    # Beyond OVMS. GLM's tags are those of the next rule, with another format inside.
    (_has("<tool_call>", "<arg_key>"), "glm4_moe", "qwen3", _THINK),
    (_has("<tool_call>", "</tool_call>"), "hermes3", "qwen3", _THINK),
    # Beyond OVMS, whose last rule would take these for models that think but call no tools.
    (_has("<｜tool▁calls▁begin｜>"), "deepseek_v3", "qwen3", _THINK),
    (_has("<|tool_calls_section_begin|>"), "kimi_k2", "kimi_k2", _THINK),
    (_has("<|action_start|>", "<|plugin|>"), "internlm2", "qwen3", _THINK),
    (_has("<tool_calls>"), "jamba", "qwen3", _THINK),
    (_has("<function_calls>"), "olmo3", "qwen3", _THINK),
    (_has("<|tool_call|>"), "granite", "qwen3", _THINK),
    (_has_any(*_THINK), None, "qwen3", ()),
)


def detect(template_source: str) -> tuple[str | None, str | None]:
    """(tool parser, reasoning parser) for a model with this chat template; None where it shows no sign of one."""
    for matches, tool, reasoning, needs in _RULES:
        if matches(template_source):
            return tool, reasoning if not needs or _has_any(*needs)(template_source) else None
    return None, None
