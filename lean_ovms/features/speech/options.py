"""The options of speech models."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import Options, option

TASK = "speech2text"
"""The task of models that transcribe and translate speech, by OVMS's name."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SpeechOptions(Options):
    """How a speech model is loaded."""

    in_engine = True
    enable_word_timestamps: bool = option(
        False,
        "prepare a speech model for word timestamps when it is loaded, instead of at the first request that asks for "
        "them",
        group="model",
        tasks=(TASK,),
    )
