"""An app with a model of every task, on fake engines."""

from __future__ import annotations

from typing import Any

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.models.text_model import TextModel
from tests.fakes import FakeEngine, say
from tests.features.images.fakes import fake_image_model
from tests.features.pooling.fakes import fake_model
from tests.features.speech.scripts import speech_model
from tests.features.voice.fakes import fake_voice


async def app_with_every_model(**options: Any) -> App:
    """Returns the app. The text model is named m, and each other model is named after its task."""
    config = Config(fake_engine=True, model_name="m", access_log=False, **options)
    text = TextModel(config, FakeEngine(lambda _, sampling: say("a", "b", sequences=sampling.n)))  # type: ignore[arg-type]
    pooling = [fake_model(task, model_name=task) for task in ("embeddings", "rerank", "classify")]
    others = (*pooling, speech_model(), fake_voice(model_name="voice"), fake_image_model(model_name="image"))
    app = App(config, [text, *[(await one)[0] for one in others]])
    await text.load()
    return app
