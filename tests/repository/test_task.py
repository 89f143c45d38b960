"""What a model directory is for: the examples are those of OVMS's own tests, and models that its rules mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.config import SERVED_TASKS
from lean_ovms.errors import StartError
from lean_ovms.repository import graph_schema, model_dir
from lean_ovms.repository.task import TASKS, detect, of_calculators

BY_ARCHITECTURE = {
    "WhisperForConditionalGeneration": "speech2text",
    "Qwen3ASRForConditionalGeneration": "speech2text",
    "SeamlessM4Tv2Model": "speech2text",
    "SpeechT5ForTextToSpeech": "text2speech",
    "ParlerTTSForConditionalGeneration": "text2speech",
    "BertForSequenceClassification": "rerank",
    "XLMRobertaForSequenceClassification": "rerank",
    "UNet2DConditionModel": "image_generation",
    "FluxTransformer2DModel": "image_generation",
    "CLIPTextModel": "image_generation",
    "BertModel": "embeddings",
    "T5EncoderModel": "embeddings",
    "NewModel": "embeddings",
    "InternVLChatModel": "text_generation",
    "LlamaForCausalLM": "text_generation",
    "Qwen3ForCausalLM": "text_generation",
    "Qwen2_5_VLForConditionalGeneration": "text_generation",
    "Gemma3ForConditionalGeneration": "text_generation",
    "SomethingElse": "",
}


def directory(path: Path, **files: Any) -> Path:
    path.mkdir(exist_ok=True)
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return path


@pytest.mark.parametrize(("name", "task"), BY_ARCHITECTURE.items())
def test_the_architecture_tells_the_task(tmp_path: Path, name: str, task: str) -> None:
    assert detect(directory(tmp_path, config={"architectures": [name]})) == task


@pytest.mark.parametrize(
    ("files", "task"),
    [
        ({}, ""),
        ({"config": []}, ""),
        ({"config": {"architectures": None, "n_mels": 80}}, "text2speech"),
        ({"config": {"architectures": [None, "LlamaForCausalLM"]}}, "text_generation"),
        ({"model_index": {"_class_name": "StableDiffusion3Pipeline"}}, "image_generation"),
        ({"model_index": {"_class_name": "FluxPipeline"}}, "image_generation"),
        (
            {
                "config": {"architectures": ["Qwen3ForCausalLM"]},
                "modules": [{"type": "sentence_transformers.models.Pooling"}],
            },
            "embeddings",
        ),
        ({"modules": [{"type": "sentence_transformers.cross_encoder.CrossEncoder"}, 1]}, "rerank"),
        ({"config": {"architectures": ["GPT2LMHeadModel"]}, "generation_config": {}}, "text_generation"),
        ({"config": {"architectures": ["ChatGLMModel"]}, "generation_config": {}}, ""),
    ],
)
def test_other_files_tell_it_too(tmp_path: Path, files: dict[str, Any], task: str) -> None:
    assert detect(directory(tmp_path, **files)) == task


def test_an_ambiguous_architecture_is_decided_by_the_directorys_own_name(tmp_path: Path) -> None:
    for name, task in [
        ("Qwen3-Embedding-0.6B", "embeddings"),
        ("Qwen3-Reranker-0.6B", "rerank"),
        ("Qwen3-0.6B", "text_generation"),
    ]:
        assert detect(directory(tmp_path / name, config={"architectures": ["Qwen3ForCausalLM"]})) == task


def test_a_broken_config_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert detect(tmp_path) == ""


def test_a_model_for_another_task_is_said_so_with_a_way_out(tmp_path: Path) -> None:
    directory(tmp_path, config={"architectures": ["BertModel"]})
    with pytest.raises(StartError, match=r"for the task embeddings, .*; --task text_generation tries it") as caught:
        model_dir.check(tmp_path)
    assert caught.value.reason == "It is for a task that this server does not serve."
    with pytest.raises(StartError, match="not a complete OpenVINO model"):
        model_dir.check(tmp_path, "text_generation")


@pytest.mark.parametrize(
    ("calculators", "found"),
    [
        (["EmbeddingsCalculatorOV"], ("embeddings", "EmbeddingsCalculatorOV")),
        (["RerankCalculator", "HttpLLMCalculator"], ("text_generation", "HttpLLMCalculator")),
        (["Own", "S2tCalculator"], ("speech2text", "S2tCalculator")),
        (["Own"], None),
        ([], None),
    ],
)
def test_the_calculators_show_the_task_of_a_graph(calculators: list[str], found: tuple[str, str] | None) -> None:
    task = of_calculators(calculators)
    assert (task and (task[0].name, task[1])) == found


def test_a_served_task_has_the_message_of_its_options() -> None:
    assert [task.name for task in TASKS if task.served] == list(SERVED_TASKS)
    assert all(task.options in graph_schema.MESSAGES for task in TASKS if task.served)
