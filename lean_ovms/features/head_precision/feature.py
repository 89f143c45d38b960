"""The manifest of output heads in fewer bits."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import Options, option
from ...manifest import CHANGED_WEIGHTS, Feature, PartRow


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class HeadOptions(Options):
    """The option for the number of bits of a model's output head."""

    in_engine = True

    head_precision: str = option(
        "",
        "precision in which PAGED has the output head of a language model: with a large vocabulary a token takes less "
        "time, and answers change; empty: as in the model's file",
        group="engine",
        choices=("", "int4", "int8"),
    )


FEATURE = Feature(
    name="head_precision",
    summary="puts the output head of a language model into 4 or 8 bits, so that a large vocabulary costs less",
    options=HeadOptions,
    parts=(PartRow(seam=CHANGED_WEIGHTS, make="child.head:SmallHead", options=("head_precision",)),),
)
