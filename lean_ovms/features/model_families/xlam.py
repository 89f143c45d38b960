"""xLAM 2: [{"name": …, "arguments": {…}}, …] as the whole answer, in a code fence, or after another family's tag."""

from __future__ import annotations

from ...grammar.call_syntax import CallForm
from .base import FENCE, ModelFamily
from .call_forms import in_json
from .json_calls import JsonCalls
from .scanner import Steps


class XlamCalls(JsonCalls):
    """Reads calls in a list at the beginning of an answer or after a tag. A list of anything else is text."""

    tags = (FENCE, "[TOOL_CALLS]", "<tool_call>")
    noise = ("<|eot_id|>", "<|im_end|>")
    at_start = True

    def read(self, tag: str) -> Steps[bool]:
        if tag == FENCE:
            return (yield from self.fenced())
        yield from self.scanner.space()
        if not (yield from self.start()):
            return False
        yield from self.scanner.space()
        yield from self.scanner.literal("</tool_call>" if tag == "<tool_call>" else "")
        return True


XLAM = ModelFamily(tools=XlamCalls, form=CallForm(one=in_json(), before="[", between=", ", after="]"))
