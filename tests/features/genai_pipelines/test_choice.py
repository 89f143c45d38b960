"""The choice of the pipeline that serves a model, and the settings of one that computes one text at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lean_ovms.cli.arguments import parse
from lean_ovms.config import Config
from lean_ovms.engine.loading import settings
from lean_ovms.engine.loading.pipeline_choice import PROVEN, VISION_FILES
from lean_ovms.engine.loading.settings import NO_LIMIT
from lean_ovms.engine.paged import assemble
from lean_ovms.engine.worker.text_model import choose, load_text_model
from lean_ovms.errors import StartError
from lean_ovms.features.genai_pipelines.child.choice import MISCOMPUTED, GenAiPipelines
from lean_ovms.features.genai_pipelines.child.settings import resolve_stateful
from tests.engine.real import DRAFT


@pytest.fixture
def config(tmp_path):
    def make(vision=False, model_type="qwen3", **options):
        for name in VISION_FILES if vision else ():
            (tmp_path / name).touch()
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        return Config(model_path=str(tmp_path), **options)

    return make


@pytest.mark.parametrize(
    ("device", "vision", "kind"),
    [
        ("CPU", False, "PAGED"),
        ("CPU", True, "VLM_CB"),
        ("NPU", False, "LM"),
        ("NPU", True, "VLM"),
        ("HETERO:NPU,CPU", False, "LM"),
        ("GPU", False, "LM_CB"),
    ],
)
def test_auto_is_continuous_batching_but_on_an_npu(config, device, vision, kind):
    assert choose(config(vision, target_device=device), ("CPU", "GPU", "NPU")).pipeline == kind


def test_auto_takes_the_paged_engine_with_assistants_and_for_every_proven_architecture(config, tmp_path):
    (tmp_path / VISION_FILES[0]).touch()  # half the files are no vision
    draft = {"draft_model_path": str(DRAFT)}
    for options in ({"prompt_lookup": True}, draft, {**draft, "draft_eagle3_mode": True}, {"allow_runtime_lora": True}):
        assert choose(config(**options), ("CPU",)).pipeline == "PAGED"
    for model_type in PROVEN:
        assert choose(config(model_type=model_type), ("CPU",)).pipeline == "PAGED"


@pytest.mark.parametrize(
    ("asked", "vision"),
    [("LM", False), ("LM_CB", False), ("PAGED", False), ("PAGED", True), ("VLM", True), ("VLM_CB", True)],
)
def test_a_type_that_fits_the_model_is_taken(config, asked, vision):
    made = config(vision, pipeline_type=asked)
    choice = choose(made, ("CPU",))
    assert choice == (asked, "as --pipeline_type says")
    assert "logit_bias" not in GenAiPipelines(made, ()).lost_fields(choice, ["progress"])


def test_a_model_that_speaks_is_an_omni_model(config):
    with pytest.raises(StartError, match="openvino_talker_model"):
        choose(config(True, pipeline_type="OMNI"), ("CPU",))
    (Path(config(True).model_path) / "openvino_talker_model.xml").touch()
    assert choose(config(True), ("CPU",)).pipeline == "OMNI"
    assert choose(config(True, pipeline_type="OMNI"), ("CPU",)).pipeline == "OMNI"
    assert choose(config(True, pipeline_type="VLM_CB"), ("CPU",)).pipeline == "VLM_CB"


@pytest.mark.parametrize(("asked", "vision"), [("LM", True), ("LM_CB", True), ("VLM", False), ("VLM_CB", False)])
def test_a_type_that_does_not_fit_stops_the_start(config, asked, vision):
    with pytest.raises(StartError, match=f"--pipeline_type {asked}"):
        choose(config(vision, pipeline_type=asked), ("CPU",))


@pytest.mark.parametrize(
    ("options", "pipeline", "reason"),
    [
        ({"model_type": "qwen3_5"}, "PAGED", "nothing"),
        ({"model_type": "qwen3"}, "VLM_CB", "not tested with models with vision of the type qwen3"),
        ({"model_type": "llava", "cache_eviction_config": "{}"}, "VLM_CB", "does not support --cache_eviction_config"),
    ],
)
def test_auto_takes_the_paged_engine_for_families_whose_images_it_reads(config, options, pipeline, reason):
    choice = choose(config(True, **options), ("CPU",))
    assert choice.pipeline == pipeline
    assert reason in choice.reason


OBSTACLES = [
    ({"draft_model_path": "x", "draft_device": "GPU"}, "does not support --draft_device GPU"),
    ({"draft_model_path": "x"}, "not tested with models of the type None"),
    ({"cache_eviction_config": "{}"}, "does not support --cache_eviction_config"),
    ({"sparse_attention_config": "{}"}, "does not support --sparse_attention_config"),
    ({"lora_modules": "a=/x"}, "does not support a LoRA adapter for all requests"),
    ({"target_device": "GPU"}, "does not support --target_device GPU"),
    ({"model_type": "rwkv"}, "not tested with models of the type rwkv"),
]


@pytest.mark.parametrize(("options", "reason"), OBSTACLES)
def test_auto_says_what_keeps_it_from_the_paged_engine(config, options, reason):
    made = config(**options)
    found = choose(made, ("CPU", "GPU"))
    assert found.pipeline == "LM_CB"
    assert reason in found.reason
    lost = GenAiPipelines(made, ()).lost_fields(found, ["progress"])
    assert "logit_bias" in lost
    assert not {"report_progress", "speaker"}.intersection(lost)


@pytest.mark.parametrize("model_type", sorted(MISCOMPUTED))
@pytest.mark.parametrize(
    ("options", "reason"), [row for row in OBSTACLES if row[0].keys() & {"cache_eviction_config", "target_device"}]
)
def test_auto_takes_no_pipeline_whose_tokens_are_wrong(config, model_type, options, reason):
    found = choose(config(model_type=model_type, **options), ("CPU", "GPU"))
    assert found.pipeline == "LM"
    assert reason in found.reason
    assert f"LM_CB generates wrong tokens with models of the type {model_type}" in found.reason


def test_a_named_pipeline_whose_tokens_are_wrong_is_taken_with_a_warning(config, caplog):
    found = choose(config(model_type="qwen3_5_text", pipeline_type="LM_CB"), ("CPU",))
    assert found.pipeline == "LM_CB"
    warning = "LM_CB generates wrong tokens with models of the type qwen3_5_text"
    assert warning in found.reason
    assert warning in caplog.text


@pytest.mark.parametrize(
    ("model_type", "miscounts", "pipeline"),
    [("qwen3", False, "LM_CB"), ("qwen3", True, "LM"), ("qwen3_5_text", False, "LM")],
)
def test_what_serves_a_model_that_cannot_be_paged(config, model_type, miscounts, pipeline):
    found = GenAiPipelines(config(model_type=model_type), ()).without_paged(
        "none of its attention layers", miscounts=miscounts
    )
    assert found.pipeline == pipeline
    assert found.reason.startswith("the paged engine cannot serve this model: none of its attention layers")


MODEL = {"vocab_size": 100, "max_position_embeddings": 8192, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    return lambda **options: Config(model_path=str(tmp_path), **options)


def test_a_stateful_plan_lets_one_text_run_as_far_as_its_context(model):
    made = resolve_stateful(model(max_model_len=1000))
    assert made.context == 1000
    assert made.blocks * made.block_size > 1000
    assert (made.step_tokens, made.prefix_caching) == (1, False)


@pytest.mark.parametrize(
    ("options", "prompt", "context"),
    [
        ({}, 1024, 1152),
        ({"max_prompt_len": 2000}, 2000, 2128),
        ({"plugin_config": '{"MAX_PROMPT_LEN": "512", "MIN_RESPONSE_LEN": 64}'}, 512, 576),
        ({"plugin_config": '{"DEVICE_PROPERTIES": {"NPU": {"MAX_PROMPT_LEN": 256}}}', "max_prompt_len": 99}, 256, 384),
        ({"max_prompt_len": 20000}, 20000, 8192),
    ],
)
def test_an_npu_takes_no_more_than_it_is_compiled_for(model, options, prompt, context):
    made = resolve_stateful(model(target_device="NPU", **options), ("CPU", "NPU"))
    assert (made.max_prompt_tokens, made.context) == (prompt, context)


def test_the_longest_prompt_reaches_only_an_npu(model):
    npu = resolve_stateful(model(target_device="NPU", max_prompt_len=7), ("NPU",))
    assert npu.properties == {"MAX_PROMPT_LEN": 7}
    cpu = resolve_stateful(model(max_prompt_len=7))
    assert (cpu.max_prompt_tokens, "MAX_PROMPT_LEN" in cpu.properties) == (NO_LIMIT, False)


@pytest.mark.parametrize("options", [{"prompt_lookup": True}, {"draft_model_path": "x"}])
def test_a_stateful_pipeline_has_no_assistant(model, options):
    with pytest.raises(StartError, match="LM_CB"):
        resolve_stateful(model(**options))


def test_a_length_for_the_npu_that_is_none_stops_the_start(model):
    with pytest.raises(StartError, match="MAX_PROMPT_LEN"):
        resolve_stateful(model(target_device="NPU", plugin_config='{"MAX_PROMPT_LEN": "long"}'), ("NPU",))


@pytest.mark.model
def test_a_model_that_needs_one_does_not_start_and_the_error_says_why() -> None:
    config = parse(["--without", "genai_pipelines", "--pipeline_type", "LM_CB"], {})
    with pytest.raises(StartError, match=r"only has the pipeline PAGED: --pipeline_type LM_CB needs a feature"):
        load_text_model(config)


def test_a_model_with_which_the_paged_engine_is_not_tested_does_not_start_by_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "rwkv"}')
    config = Config(model_path=str(tmp_path), without="genai_pipelines")
    with pytest.raises(StartError, match="the pipeline PAGED: the paged engine is not tested with models of the ty"):
        choose(config, ("CPU",))
    config = config.replace(pipeline_type="PAGED")
    assert choose(config, ("CPU",)).pipeline == "PAGED"


def test_no_other_pipeline_is_pointed_to(tmp_path: Path) -> None:
    config = Config(model_path=str(tmp_path), target_device="GPU", without="genai_pipelines")
    with pytest.raises(StartError) as error:
        assemble.load(config, settings.resolve(config, 1 << 30, paged=True))
    assert str(error.value) == "--pipeline_type PAGED does not support --target_device GPU"
