"""The task of a model directory: examples from OVMS's own tests, and models that its rules misjudge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.errors import StartError
from lean_ovms.features.images.feature import FILES as IMAGE_FILES
from lean_ovms.repository import model_config, model_dir
from lean_ovms.repository.model_dir import detect_task

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
    "CLIPTextModel": "embeddings",
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
def test_the_architecture_decides_the_task(tmp_path: Path, name: str, task: str) -> None:
    assert detect_task(directory(tmp_path, config={"architectures": [name]})) == task


@pytest.mark.parametrize(
    ("files", "task"),
    [
        ({}, ""),
        ({"config": []}, ""),
        ({"config": {"architectures": None, "n_mels": 80}}, "text2speech"),
        ({"config": {"architectures": None, "n_mels": 80, "model_type": "kokoro"}}, "text2speech"),
        ({"config": {"architectures": None, "n_mels": 80, "model_type": "other"}}, ""),
        ({"config": {"architectures": [None, "LlamaForCausalLM"]}}, "text_generation"),
        ({"model_index": {"_class_name": "StableDiffusion3Pipeline"}}, "image_generation"),
        ({"model_index": {"_class_name": "FluxPipeline"}}, "image_generation"),
        (
            {"config": {"architectures": ["CLIPTextModel"]}, "model_index": {"_class_name": "StableDiffusionPipeline"}},
            "image_generation",
        ),
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
    assert detect_task(directory(tmp_path, **files)) == task


@pytest.mark.parametrize(
    ("config", "modules", "task"),
    [
        ({"id2label": {"0": "LABEL_0"}}, None, "rerank"),
        ({"id2label": {"0": "relevance"}}, None, "rerank"),
        ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, None, "rerank"),
        ({"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}}, None, "classify"),
        ({"id2label": {"0": "NEGATIVE", "1": "POSITIVE"}}, None, "classify"),
        ({"id2label": {"0": "no", "1": "yes"}}, [{"type": "sentence_transformers.CrossEncoder"}], "rerank"),
        ({"id2label": "broken"}, None, "rerank"),
    ],
)
def test_labels_tell_classifiers_from_rerankers(
    tmp_path: Path, config: dict[str, Any], modules: Any, task: str
) -> None:
    directory(tmp_path, config={"architectures": ["BertForSequenceClassification"], **config})
    if modules:
        directory(tmp_path, modules=modules)
    assert detect_task(tmp_path) == task


def test_a_token_classifier_is_a_task_of_its_own(tmp_path: Path) -> None:
    assert (
        detect_task(directory(tmp_path, config={"architectures": ["BertForTokenClassification"]})) == "token_classify"
    )


def test_a_renamed_decoder_is_for_embeddings_if_its_network_takes_no_beams(tmp_path: Path) -> None:
    directory(tmp_path, config={"architectures": ["Qwen3ForCausalLM"]})
    for layers, task in [
        ('<layer name="input_ids"/><layer name="attention_mask"/>', "embeddings"),
        ('<layer name="input_ids"/><layer name="beam_idx"/>', "text_generation"),
        ("", "text_generation"),
    ]:
        (tmp_path / "openvino_model.xml").write_text(layers)
        assert detect_task(tmp_path) == task


def test_an_ambiguous_architecture_is_decided_by_the_directorys_own_name(tmp_path: Path) -> None:
    for name, task in [
        ("Qwen3-Embedding-0.6B", "embeddings"),
        ("Qwen3-Reranker-0.6B", "rerank"),
        ("Qwen3-0.6B", "text_generation"),
    ]:
        assert detect_task(directory(tmp_path / name, config={"architectures": ["Qwen3ForCausalLM"]})) == task


def test_a_broken_config_decides_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert detect_task(tmp_path) == ""


def test_an_image_model_is_known_by_its_folders(tmp_path: Path) -> None:
    directory(tmp_path, model_index={"_class_name": "StableDiffusionPipeline"})
    with pytest.raises(StartError, match=r": vae_decoder/openvino_model.xml, scheduler/scheduler_config.json missing"):
        model_dir.check(tmp_path)
    for name in IMAGE_FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "vae_decoder" / "openvino_model.bin").write_bytes(b"1234")
    model_dir.check(tmp_path, "image_generation")
    assert model_config.weights_bytes(tmp_path) == 4
