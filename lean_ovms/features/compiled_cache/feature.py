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
        "maximum size in GB of the compiled models that PAGED keeps in cache_dir, for all models together; the least "
        "recently used are removed",
        group="engine",
        low=0.001,
    )


FEATURE = Feature(
    name="compiled_cache",
    summary="keeps language models in compiled form, for faster starts",
    options=CompiledCacheOptions,
    parts=(PartRow(seam=NETWORK_COMPILER, make="child.compiler:KeepingCompiler", options=("cache_dir",)),),
)
