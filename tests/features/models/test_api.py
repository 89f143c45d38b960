"""The list of models says what each is for, whether it has been loaded or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from lean_ovms.api.app import App
from lean_ovms.composition import compose
from lean_ovms.config import Config
from lean_ovms.models.model import make_model
from lean_ovms.repository.model_config import LANGUAGE_MODEL
from lean_ovms.repository.model_dir import ModelDir
from lean_ovms.server.run import close
from tests.api.conftest import MakeApp, get, whole

MODALITIES = {
    "text_generation": ("text", "text"),
    "speech2text": ("audio", "text"),
    "text2speech": ("text", "audio"),
    "image_generation": ("text", "image"),
}
"""Input and output by task; the other tasks read text, and their output has their name."""


@pytest.mark.parametrize("task", ["", *compose().task_names])
async def test_an_entry_has_task_and_modalities_before_its_model_is_loaded(task: str) -> None:
    config = Config(fake_engine=True, model_name="m", task=task, access_log=False)
    model = make_model(config)
    model.announced = True
    app = App(config, [model])
    [entry] = (await whole(await get(app, "/v1/models")))["data"]
    task = task or "text_generation"
    assert (entry["task"], entry["status"]["value"]) == (task, "loading")
    given, made = MODALITIES.get(task, ("text", task))
    assert (entry["input_modalities"], entry["output_modalities"]) == ([given], [made])
    assert entry["architecture"] == {"input_modalities": [given], "output_modalities": [made]}
    assert not {"max_model_len", "meta"} & entry.keys()
    await close(app)


async def test_the_context_length_has_the_names_of_vllm_and_of_llama_cpp(make_app: MakeApp) -> None:
    app, _ = await make_app()
    [entry] = (await whole(await get(app, "/v1/models")))["data"]
    assert (entry["max_model_len"], entry["meta"]) == (1000, {"n_ctx": 1000})


async def test_files_of_a_vision_model_show_that_it_reads_images(tmp_path: Path) -> None:
    (tmp_path / LANGUAGE_MODEL).touch()
    model = make_model(Config(fake_engine=True, access_log=False))
    assert model.input_modalities == ("text",)
    model.directory = ModelDir(path=tmp_path)
    assert model.input_modalities == ("text", "image")
