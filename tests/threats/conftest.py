"""Tests here are hostile to a server while somebody else uses it, who must not notice; afterwards nothing is left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.threats.house import House, in_use, open_house


@pytest.fixture(scope="package")
def shared_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with open_house(tmp_path_factory.mktemp("house"), "--max_body_bytes", str(8 << 20)) as house:
        house.settle()
        before_mb = house.resident_mb()
        yield house
        assert house.resident_mb() < before_mb + 100, "memory is not given back"


@pytest.fixture
def house(shared_house: House) -> Iterator[House]:
    """The shared server, in use by a bystander; when the test is over, it must be as it was before."""
    with in_use(shared_house) as house:
        yield house
