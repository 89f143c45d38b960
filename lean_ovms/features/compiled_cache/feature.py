"""The manifest of the cache of compiled networks."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import Options, option
from ...manifest import NETWORK_COMPILER, Feature, PartRow


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class CompiledCacheOptions(Options):
    """The limits of the cache in --cache_dir."""

    in_engine = True

    cache_dir_gb: float = option(
        20.0,
        "most GB of networks that PAGED keeps in cache_dir, of all models together; what was used longest ago is "
        "removed",
        group="engine",
        low=0.001,
    )


FEATURE = Feature(
    name="compiled_cache",
    summary="keeps the networks of language models in the form in which they are compiled, for quicker starts",
    options=CompiledCacheOptions,
    parts=(PartRow(seam=NETWORK_COMPILER, make="child.compiler:KeepingCompiler", options=("cache_dir",)),),
)
