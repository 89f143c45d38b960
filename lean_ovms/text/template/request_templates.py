"""Chat templates that requests bring along, where the operator allows it: compiled like a model's, without its files.

A client that has one sends it with every request, so the last few are kept compiled. Compiling and probing takes a few
milliseconds, so it is work for a thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ...errors import BadRequest
from .chat_template import ChatTemplate
from .escape import SpecialTokenEscaper

MAX_CHARS = 1 << 17
"""Characters of a template: several times those of the longest models' templates."""
KEPT = 8
PROBE_S = 1.0
"""CPU time to find out what a template reads. A model's own may take longer: nobody waits for it."""


class RequestTemplates:
    """The templates of requests for one model. The arguments are those of ChatTemplate."""

    def __init__(
        self,
        *,
        special_tokens: Mapping[str, str],
        content_format: str,
        escaper: SpecialTokenEscaper | None,
        variables: Mapping[str, Any],
    ) -> None:
        def compiled(source: str) -> ChatTemplate:
            return ChatTemplate(
                source,
                special_tokens=special_tokens,
                content_format=content_format,
                escaper=escaper,
                variables=variables,
                probe_s=PROBE_S,
            )

        self._compiled = lru_cache(KEPT)(compiled)

    def get(self, source: str) -> ChatTemplate:
        """Returns the template of this text. Raises BadRequest."""
        if len(source) > MAX_CHARS:
            raise BadRequest(f"chat_template is longer than {MAX_CHARS} characters", param="chat_template")
        template = self._compiled(source)
        if template.problem:
            raise BadRequest(template.problem, param="chat_template")
        return template
