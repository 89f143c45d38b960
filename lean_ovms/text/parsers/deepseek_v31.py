"""DeepSeek V3.1, between <｜tool▁calls▁begin｜> and <｜tool▁calls▁end｜>, any number of

<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>
"""

from __future__ import annotations

from ...grammar.frames import CallForm, json_after
from . import deepseek_v3
from .detection import THINK, Detection


class Tools(deepseek_v3.Tools):
    """Reads what DeepSeek V3 writes too."""


FORM = CallForm(
    one=json_after("<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    before="<｜tool▁calls▁begin｜>",
    after="<｜tool▁calls▁end｜>",
    trigger="<｜tool▁calls▁begin｜>",
)

# After deepseek_v3, whose templates show the fence around its arguments.
DETECTION = Detection(rank=135, marks=(("<｜tool▁calls▁begin｜>",),), reasoning="qwen3", reasoning_marks=THINK)
