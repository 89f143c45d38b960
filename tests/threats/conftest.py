"""These tests attack a server while a bystander uses it, who must not notice; afterwards nothing may be left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.threats.target import Target, in_use, start_target


@pytest.fixture(scope="package")
def shared_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with start_target(tmp_path_factory.mktemp("target"), "--max_body_bytes", str(8 << 20)) as target:
        target.settle()
        before_mb = target.resident_mb()
        yield target
        assert target.resident_mb() < before_mb + 100, "memory is not given back"


@pytest.fixture
def target(shared_target: Target) -> Iterator[Target]:
    """The shared server, which a bystander uses. After the test, it must be as it was before."""
    with in_use(shared_target) as target:
        yield target
