"""The manifest of replicas."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import Options, option
from ...manifest import ENGINE, Feature, Metric, PartRow


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ReplicaOptions(Options):
    """The option for the number of processes that compute a model."""

    engine_replicas: int = option(
        0,
        "engine processes that compute the model, each with its share of the CPUs and its own KV cache; a request "
        "goes to the one that has cached most of its prompt, unless others have much less to do; 0 for one",
        group="engine",
        low=0,
        high=64,
    )


METRIC = "lean_ovms_replica_"
"""The prefix of the names of the feature's metrics."""
LABELS = ("model_name", "replica")
"""The labels of the feature's metrics."""

FEATURE = Feature(
    name="replicas",
    summary="computes one model in several processes, each on its own CPUs, and keeps each conversation in one of them",
    options=ReplicaOptions,
    flags="flags.txt",
    metrics=(
        Metric(f"{METRIC}up", "gauge", "1 while the replica serves requests", LABELS),
        Metric(f"{METRIC}requests", "gauge", "requests that the replica is serving", LABELS),
        Metric(f"{METRIC}restarts_total", "counter", "restarts of the replica's process", LABELS, lasting=False),
        Metric(f"{METRIC}resident_memory_bytes", "gauge", "memory of the replica's process", LABELS),
        Metric(f"{METRIC}running", "gauge", "sequences in the replica's batch", LABELS),
        Metric(f"{METRIC}waiting", "gauge", "sequences waiting for the replica", LABELS),
        Metric(f"{METRIC}kv_cache_usage", "gauge", "share of its KV cache that running sequences hold", LABELS),
    ),
    samples="metrics:samples",
    parts=(PartRow(seam=ENGINE, make="pool:make", options=("engine_replicas",)),),
)
