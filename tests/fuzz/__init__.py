"""Random and hostile input. FUZZ_FACTOR multiplies the usual number of examples, and makes them differ between runs."""

import os

from hypothesis import HealthCheck, settings

FACTOR = int(os.environ.get("FUZZ_FACTOR", "1"))


def examples(usual: int) -> settings:
    """Returns settings for a test with this many examples, the same each time unless FUZZ_FACTOR is given."""
    return settings(
        max_examples=usual * FACTOR,
        deadline=None,
        database=None,
        derandomize=FACTOR == 1,
        suppress_health_check=list(HealthCheck),
    )
