"""Random and hostile input. FUZZ_FACTOR: so many times the usual number of examples, other ones with each run."""

import os

from hypothesis import HealthCheck, settings

FACTOR = int(os.environ.get("FUZZ_FACTOR", "1"))


def examples(usual: int) -> settings:
    """Settings for a test that tries so many examples if FUZZ_FACTOR is not given, the same ones each time."""
    return settings(
        max_examples=usual * FACTOR,
        deadline=None,
        database=None,
        derandomize=FACTOR == 1,
        suppress_health_check=list(HealthCheck),
    )
