"""The manifest of structured output."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...config.options import Options, option
from ...manifest import ANSWER_RULES, GENAI_GRAMMARS, GRAMMARS, REQUEST_CONSTRAINTS, Feature, Metric, PartRow

_limits = partial(option, group="limits")
_behaviour = partial(option, group="behaviour")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class StructuredOutputOptions(Options):
    """The options of structured output: when it is enforced, by which library, and its limits."""

    in_engine = True

    enable_tool_guided_generation: bool = option(
        False,
        "make tool calls follow the schemas of the tools even if the model may choose whether to call one "
        "(tool_choice auto)",
        group="model",
    )
    grammar_timeout_s: float = _limits(
        2.0,
        "maximum CPU seconds for compiling a client's grammar or schema; longer compilation is answered with 400",
        low=0.05,
        high=600,
    )
    grammar_memory_mb: int = _limits(
        512, "maximum memory in MB for compiling a grammar or schema; using more is answered with 400", low=32
    )
    grammar_cache_mb: int = _limits(
        256, "maximum memory in MB for compiled grammars; when it is full, all are dropped", low=1
    )
    grammar_max_bytes: int = _limits(
        65536, "maximum size of a grammar or schema in bytes; larger ones are rejected with 400", low=64
    )
    grammar_max_nesting: int = _limits(
        64, "maximum nesting depth of a grammar or schema; deeper ones are rejected with 400", low=4, high=256
    )
    structured_output_backend: str = _behaviour(
        "auto",
        "library that enforces grammars: guidance (only with PAGED) or xgrammar (with every pipeline; with PAGED if "
        "the package xgrammar is installed); auto means guidance with PAGED, and xgrammar otherwise",
        choices=("auto", "guidance", "xgrammar"),
    )
    strict_response_format: bool = _behaviour(
        False, "answer 400 if a response_format cannot be enforced, instead of adding a Warning header"
    )


NOT_IMPOSED = "lean_ovms_structured_output_not_imposed_total"

FEATURE = Feature(
    name="structured_output",
    summary="makes answers and tool calls follow schemas, regular expressions and grammars",
    options=StructuredOutputOptions,
    flags="flags.txt",
    metrics=(Metric(NOT_IMPOSED, "counter", "generations whose requested structured output was not fully enforced"),),
    parts=(
        PartRow(seam=ANSWER_RULES, make="reading:read_rule"),
        PartRow(seam=REQUEST_CONSTRAINTS, make="request:StructuredOutput"),
        PartRow(seam=GRAMMARS, make="child.library:GrammarLibraries"),
        PartRow(seam=GENAI_GRAMMARS, make="child.genai.compiler:grammars"),
    ),
)
