"""LLM with scripted engines: without a child process, but with its thread and event loop."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from lean_ovms import LLM
from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.features.llm import async_llm
from lean_ovms.models.model import Model
from lean_ovms.models.text_model import TextModel
from lean_ovms.server.run import close
from lean_ovms.types.engine import CAPABILITIES
from tests.fakes import FakeEngine

MakeLLM = Callable[..., LLM]


async def text_model(script: Any, *, config: Config, **info: Any) -> tuple[Model, FakeEngine]:
    """Returns a loaded text model with all abilities, and its engine."""
    engine = FakeEngine(script)
    engine.info = replace(engine.info, capabilities=sorted({*CAPABILITIES.values()}), **info)
    model = TextModel(config.replace(model_name="m"), engine)  # type: ignore[arg-type]
    await model.load()
    return model, engine


def serve(monkeypatch: pytest.MonkeyPatch, make: Callable[..., Awaitable[tuple[Model, Any]]]) -> list[Any]:
    """Gives every LLM the model that `make` returns. Returns the list of engines, which grows as they are created."""
    engines: list[Any] = []

    @contextlib.asynccontextmanager
    async def opened(config: Config) -> AsyncIterator[App]:
        model, engine = await make(config=config)
        engines.append(engine)
        app = App(config, [model])
        yield app
        await close(app)

    monkeypatch.setattr(async_llm, "opened", opened)
    return engines


@pytest.fixture
def make_llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeLLM]:
    """Returns make_llm(make, **options) -> an LLM with the model of `make`, whose engine is its attribute `engine`."""
    with contextlib.ExitStack() as stack:

        def make_one(make: Any, **options: Any) -> LLM:
            engines = serve(monkeypatch, make)
            llm = stack.enter_context(LLM(fake_engine=True, **options))
            llm.engine = engines[-1]  # type: ignore[attr-defined]
            return llm

        yield make_one
