"""The form of an answer, imposed as far as it can be: its grammar is made, tried at the engine, and relaxed if it must.

Knows grammars by their makers in text/, and the engine as somebody who takes a structural tag or refuses it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from ..config import Config
from ..errors import GrammarInvalid, GrammarTooComplex
from ..observability.logging import safe
from ..text.grammar import build
from ..text.grammar.build import Constraint, GrammarContext
from ..types import OutputConstraint
from ..util.concurrency import Offload

log = logging.getLogger("lean_ovms.models.structured_output")

T = TypeVar("T")

BRIEF_SCHEMAS = 2048
"""Bytes of schemas whose grammar is made on the event loop; 64 KiB take 90 ms."""
MOST_SCHEMAS = 8
"""Of all tools and the format together, in grammars of the largest size."""


async def apply_constraint(
    guide: OutputConstraint,
    context: GrammarContext,
    submit: Callable[[str], Awaitable[T]],
    config: Config,
    aside: Offload,
) -> tuple[T, list[str]]:
    """What submit makes of the structural tag, and what of the form is not imposed.

    Raises RequestError when nothing less will do.
    """
    notices: list[str] = []
    while True:
        try:
            built = await _built(guide, context, config, aside)
            if built.notices and config.strict_response_format:
                raise GrammarInvalid(built.notices[0], param=guide.param)
            accepted = await submit(built.tag)
            break
        except (GrammarInvalid, GrammarTooComplex) as error:
            error.param = error.param or guide.param
            if config.strict_response_format:
                raise
            guide, context, notice = build.relax(guide, context, error)
            notices.append(notice)
    notices += built.notices
    for notice in notices:
        log.warning("%s", safe(notice))
    return accepted, notices


async def _built(guide: OutputConstraint, context: GrammarContext, config: Config, aside: Offload) -> Constraint:
    """The grammar; of large schemas it is made beside the loop. Raises as guides.build."""
    size, most = build.size(guide, context.tools), MOST_SCHEMAS * config.grammar_max_bytes
    if size > most:
        raise GrammarTooComplex(f"The schemas have more than {most} bytes")
    return await aside.run(size, partial(build.build, guide, context), brief=BRIEF_SCHEMAS)
