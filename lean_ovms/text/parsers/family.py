"""A family of models: how it writes calls and reasoning, and the rule that recognises its chat templates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...grammar.call_syntax import CallForm, OutputForm
from .base import Syntax


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """The rule by which a chat template is recognised as a family's.

    The rules of rank 10 to 100, 120 and 1000 are OVMS's, in its order: plain substrings, the first match wins. The
    families beyond OVMS are placed where it would choose a parser that cannot read the format, or none.

    Families that share tags are tried in the order of what else is in their templates:
    - seed_oss before qwen3coder: the same elements between other tags
    - xlam before llama3 and hermes3, on whose templates these models' are built
    - hy_v3 before glm4_moe, hermes3 and hunyuan_a13b: some of the same tags
    - glm4_moe before hermes3: the same tags with another format inside
    - ernie45 before hermes3: the same tags around calls
    - deepseek_v3, whose templates show the fence around its arguments, before deepseek_v31
    - hunyuan_a13b before jamba: the same tags
    """

    rank: int
    """Families are tried in rising order, each rank once; the last, 1000, takes every other template that thinks."""
    marks: tuple[tuple[str, ...], ...]
    """A template is the family's if it has all substrings of one of these groups."""
    reasoning: str | None = None
    """The reasoning parser that goes with the family."""
    reasoning_marks: tuple[str, ...] = ()
    """The reasoning parser is used only for a template that has one of these as well; empty: for every template."""

    def matches(self, source: str) -> bool:
        """Tells whether a template with this source is the family's."""
        return any(all(mark in source for mark in group) for group in self.marks)

    def reasoning_of(self, source: str) -> str | None:
        needed = not self.reasoning_marks or any(mark in source for mark in self.reasoning_marks)
        return self.reasoning if needed else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """One name that can be chosen as a parser; families.json says which module has it, and how it is recognised."""

    tools: type[Syntax] | None = None
    """The reader of its calls, which makes it a tool parser."""
    thinking: type[Syntax] | None = None
    """The reader of its reasoning, which makes it a reasoning parser."""
    form: CallForm | None = None
    """How it writes calls; without it the model cannot be made to call."""
    adapted: Callable[[OutputForm, str], OutputForm] | None = None
    """For a family whose checkpoints spell their tags differently: the form of the checkpoint whose prompt has this
    end."""
