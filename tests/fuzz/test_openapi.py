"""schemathesis (https://schemathesis.readthedocs.io) against the server's own OpenAPI document, through the ASGI door.

It makes requests that fit the document and requests that do not, and looks at status, content type, headers and body of
every answer. One of its checks is left out: that all that fits is accepted. Rules between fields (n and best_of, two
forms of an answer at once, an input or something to go on from) cannot be said in a schema.

SCHEMATHESIS_EXAMPLES: requests for each operation, 6 if not given.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.models.text_model import TextModel
from lean_ovms.transports.asgi import Asgi
from tests.fakes import FakeEngine, say
from tests.pooling_fakes import fake_model

EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "6"))
LEFT_OUT = ("positive_data_acceptance",)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    config = Config(fake_engine=True, model_name="m", access_log=False, metrics_enable=True)
    model = TextModel(config, FakeEngine(lambda _, sampling: say("a", "b", sequences=sampling.n)))  # type: ignore[arg-type]
    pooling = [fake_model(task, model_name=task) for task in ("embeddings", "rerank", "classify")]
    app = App(config, [model, *(asyncio.run(one)[0] for one in pooling)])
    asyncio.run(model.load())
    yield app
    asyncio.run(app.close())


def operations(app: App) -> Iterator[schemathesis.APIOperation]:
    schema = schemathesis.openapi.from_asgi("/openapi.json", Asgi(app.handle, 1 << 20))
    for found in schema.get_all_operations():
        yield found.ok()


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.timeout(300)
def test_it_finds_nothing(app: App, mode: GenerationMode) -> None:
    asked = 0

    def tried(operation: schemathesis.APIOperation) -> None:
        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def ask(case: schemathesis.Case) -> None:
            nonlocal asked
            asked += 1
            case.call_and_validate(excluded_checks=[CHECKS.get_one(name) for name in LEFT_OUT])

        ask()

    for operation in operations(app):
        takes = operation.body or operation.query
        if mode is GenerationMode.NEGATIVE and not takes:
            continue  # nothing can be wrong with it
        try:
            tried(operation)
        except Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE, operation.label
    assert asked >= EXAMPLES * 5
