"""DeepSeek V3.2 and later: each value has an attribute that says whether it is a string; otherwise it is JSON.

V3.2: <｜DSML｜function_calls><｜DSML｜invoke name="NAME"><｜DSML｜parameter name="KEY" string="true">value
</｜DSML｜parameter>…</｜DSML｜invoke>…</｜DSML｜function_calls>
V4:   the same in a block of another name, <｜DSML｜tool_calls>
V4.1: V4's calls with a blank in each tag, <｜DSML｜ calls>
"""

from __future__ import annotations

import re
from typing import Any

from ...grammar.call_syntax import CallForm
from .base import ModelFamily
from .call_forms import xml_call
from .scanner import Steps
from .think_tags import ThinkTags
from .values import STRING
from .xml_calls import XmlCalls

END_OF_TEXT = "<｜end▁of▁sentence｜>"
V32_BLOCK = "<｜DSML｜function_calls>"
V4_BLOCKS = ("<｜DSML｜tool_calls>", "<｜DSML｜toolcalls>", "<｜DSML｜tool>")
"""V4's name of the block, and two misspellings of it."""

V41_BLOCK = "<｜DSML｜ calls>"
_NOTE = re.compile(r'[a-z="]*')


class DsmlCalls(XmlCalls):
    """Reads calls in DSML elements. The schema decides the type of a value, or if it does not, the element."""

    any_quotes = True
    noise = (END_OF_TEXT,)
    trim = False
    _note = ""

    def name(self, after: str) -> Steps[str]:
        if after == self.after_name:
            return (yield from super().name(after))
        if (yield from self.scanner.peek()) not in ('"', "'"):
            return ""
        name = yield from super().name("")
        yield from self.scanner.space()
        self._note = yield from self.scanner.word(_NOTE)
        yield from self.scanner.space()
        return name if (yield from self.scanner.literal(">")) else ""

    def kinds(self, schema: Any) -> frozenset[str]:
        kinds = super().kinds(schema)
        return STRING if self._note == 'string="true"' and (not kinds or "string" in kinds) else kinds


def _family(blocks: tuple[str, ...], breaks: tuple[str, ...], blank: str = "") -> ModelFamily:
    """Makes one of the families.

    Args:
        blocks: The tags that begin a block of calls, the family's own first.
        breaks: The tags that end reasoning.
        blank: The text after "｜DSML｜" in each tag.
    """
    begin = blocks[0]
    end = begin.replace("<", "</")
    call, call_end = f"<｜DSML｜{blank}invoke name=", f"</｜DSML｜{blank}invoke>"
    value, value_end = f"<｜DSML｜{blank}parameter name=", f"</｜DSML｜{blank}parameter>"
    return ModelFamily(
        tools=DsmlCalls.variant(
            tags=(*blocks, call, end),
            call_tag=call,
            block_end=end,
            keys={value: ""},
            value_end=value_end,
            open_ended=True,
            ends=(call_end,),
        ),
        thinking=ThinkTags.variant(breaks=breaks, noise=(END_OF_TEXT,)),
        form=CallForm(
            one=xml_call(f'{call}"NAME">\n', call_end, f'{value}"KEY" string="IS_TEXT">', value_end + "\n"),
            before=begin + "\n",
            between="\n",
            after="\n" + end,
            trigger=begin,
        ),
    )


DEEPSEEK_V32 = _family((V32_BLOCK,), breaks=(V32_BLOCK, *V4_BLOCKS))
DEEPSEEK_V4 = _family(V4_BLOCKS, breaks=(V32_BLOCK, *V4_BLOCKS))
DEEPSEEK_V41 = _family((V41_BLOCK,), breaks=(V41_BLOCK,), blank=" ")
