"""The options of text-to-speech models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ...config.options import Options, option
from ...errors import StartError

TASK = "text2speech"
"""The task of models that speak texts, by OVMS's name."""
_model = partial(option, group="model", tasks=(TASK,))


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class VoiceOptions(Options):
    """The voices of a text-to-speech model, and how fast they may speak."""

    in_engine = True
    voices: str = _model(
        "",
        "JSON object with further voices of a text-to-speech model, from names to files, beside those in its folder "
        "voices",
        json_object=True,
    )
    speed_min: float = _model(0.25, "lowest speed that a speech request may set", low=0.05, high=20)
    speed_max: float = _model(4.0, "highest speed that a speech request may set", low=0.05, high=20)

    def check(self, config: Any) -> None:
        """Checks the order of the speeds. Raises StartError."""
        if self.speed_min > self.speed_max:
            raise StartError("--speed_min must not be above --speed_max")
