"""The manifest of the scripted engine."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import Options, option
from ...manifest import ANSWERS_WITHOUT_MODEL, Feature, PartRow


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ScriptOptions(Options):
    """The option that replaces the model by a script."""

    in_engine = True

    fake_engine: bool = option(
        False, "run a scripted engine instead of a model, for tests and benchmarks", group="engine"
    )


FEATURE = Feature(
    name="scripted_engine",
    summary="answers from a script instead of a model, for tests and benchmarks",
    options=ScriptOptions,
    parts=(PartRow(seam=ANSWERS_WITHOUT_MODEL, make="child.backend:ScriptedEngine", options=("fake_engine",)),),
)
