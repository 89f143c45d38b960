"""Commands that pull need the hub of tests/hub; commands that ask a server, one that answers what a test says."""

from collections.abc import Iterator

import pytest

from tests.cli.scripted import ScriptedServer, scripted_server
from tests.hub.conftest import *  # noqa: F403


@pytest.fixture
def script() -> Iterator[ScriptedServer]:
    with scripted_server() as found:
        yield found
