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
        "precision to which PAGED quantizes the output head of a language model: with a large vocabulary a token "
        "takes less time, but answers change; if empty, it stays as in the model's file",
        group="engine",
        choices=("", "int4", "int8"),
    )


FEATURE = Feature(
    name="head_precision",
    summary="quantizes the output head of a language model to 4 or 8 bits, so that a large vocabulary costs less",
    options=HeadOptions,
    parts=(PartRow(seam=CHANGED_WEIGHTS, make="child.head:SmallHead", options=("head_precision",)),),
)
