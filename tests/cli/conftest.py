"""Commands that pull need the hub of tests/hub."""

from tests.hub.conftest import *  # noqa: F403
