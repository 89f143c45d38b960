"""The options of the KV cache and the scheduler reach GenAI's SchedulerConfig, or the start fails and names them."""

import json

import openvino_genai as genai
import pytest

from lean_ovms.config import Config
from lean_ovms.engine.loading import settings
from lean_ovms.engine.worker.text_model import load_text_model
from lean_ovms.errors import StartError
from lean_ovms.features.genai_pipelines.child.scheduler_config import draft_blocks, draft_scheduler, scheduler

pytestmark = pytest.mark.slow
GB = 1 << 30
DRAFT = {"draft_model_path": str(Config().model_dir)}
EVICTION = {"start_size": 32, "recent_size": 64, "max_cache_size": 256}


def made(build=scheduler, **options):
    config = Config(**options)
    return build(config, settings.resolve(config, GB))


def evicting(**fields):
    return made(cache_eviction_config=json.dumps({**EVICTION, **fields}))


def sparse(**fields):
    return made(sparse_attention_config=json.dumps(fields)).sparse_attention_config


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("cache_size", 3),
        ("max_num_batched_tokens", 77),
        ("max_num_seqs", 5),
        ("dynamic_split_fuse", False),
        ("enable_prefix_caching", False),
        ("enable_prefix_caching", True),
        ("cache_interval_multiplier", 4),
    ],
)
def test_an_option_reaches_the_field_of_its_name(option, value):
    assert getattr(made(**{option: value}), option) == value
    plain = made()
    assert (plain.cache_size, plain.use_cache_eviction, plain.use_sparse_attention) == (0, False, False)
    assert (plain.num_kv_blocks > 100, made(cache_size=1).num_kv_blocks) == (True, 0)


def test_cache_eviction_reaches_its_config_with_ovms_defaults():
    config = evicting().cache_eviction_config
    assert evicting().use_cache_eviction
    assert (config.get_start_size(), config.get_recent_size(), config.get_max_cache_size()) == (32, 64, 256)
    assert config.aggregation_mode == genai.AggregationMode.NORM_SUM
    assert (config.apply_rotation, config.kvcrush_config.budget) == (False, 0)
    assert evicting(snapkv_window_size=8).cache_eviction_config.snapkv_window_size == 0  # short prompts fail with it


def test_every_field_of_cache_eviction_is_taken():
    crush = {"budget": 2, "anchor_point_mode": "MEAN", "rng_seed": 7}
    config = evicting(aggregation_mode="SUM", apply_rotation=True, kv_crush_config=crush).cache_eviction_config
    assert config.aggregation_mode == genai.AggregationMode.SUM
    assert config.apply_rotation
    crushed = config.kvcrush_config
    assert (crushed.budget, crushed.rng_seed) == (2, 7)
    assert crushed.anchor_point_mode == genai.KVCrushAnchorPointMode.MEAN


def test_every_field_of_sparse_attention_is_taken():
    fields = {
        "num_last_dense_tokens_in_prefill": 10,
        "num_retained_start_tokens_in_cache": 32,
        "num_retained_recent_tokens_in_cache": 64,
        "xattention_block_size": 128,
        "xattention_stride": 4,
    }
    config = sparse(mode="XATTENTION", xattention_threshold=0.5, **fields)
    assert made(sparse_attention_config="{}").use_sparse_attention
    assert config.mode == genai.SparseAttentionMode.XATTENTION
    assert config.xattention_threshold == pytest.approx(0.5)
    assert {name: getattr(config, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("option", "text", "word"),
    [
        ("cache_eviction_config", "{", "JSON"),
        ("cache_eviction_config", "[]", "object"),
        ("cache_eviction_config", "{}", "start_size, recent_size, max_cache_size"),
        ("cache_eviction_config", json.dumps({**EVICTION, "size": 1}), "size is unknown"),
        ("cache_eviction_config", json.dumps({**EVICTION, "start_size": "32"}), "start_size must be a whole number"),
        ("cache_eviction_config", json.dumps({**EVICTION, "start_size": True}), "start_size must be a whole number"),
        ("cache_eviction_config", json.dumps({**EVICTION, "start_size": -1}), ""),
        ("cache_eviction_config", json.dumps({**EVICTION, "apply_rotation": 1}), "true or false"),
        ("cache_eviction_config", json.dumps({**EVICTION, "aggregation_mode": "AVG"}), "NORM_SUM"),
        ("cache_eviction_config", json.dumps({**EVICTION, "kv_crush_config": 1}), "kv_crush_config must be an object"),
        ("cache_eviction_config", json.dumps({**EVICTION, "kv_crush_config": {"b": 1}}), "b is unknown"),
        ("sparse_attention_config", '{"mode": "DENSE"}', "XATTENTION"),
        ("sparse_attention_config", '{"xattention_threshold": "x"}', "a number"),
    ],
)
def test_what_cannot_be_meant_stops_the_start_with_the_option(option, text, word):
    with pytest.raises(StartError, match=f"--{option}.*{word}"):
        made(**{option: text})


def test_a_draft_has_the_main_models_settings_but_for_its_own():
    inherited = made(draft_scheduler, max_num_seqs=9, **DRAFT)
    assert inherited.max_num_seqs == 9
    assert inherited.num_kv_blocks == made(max_num_seqs=9, **DRAFT).num_kv_blocks > 0
    own = made(draft_scheduler, draft_cache_size=2, draft_max_num_seqs=3, draft_max_num_batched_tokens=150_000, **DRAFT)
    assert (own.cache_size, own.num_kv_blocks, own.max_num_seqs, own.max_num_batched_tokens) == (2, 0, 3, 150_000)
    assert not own.dynamic_split_fuse
    assert made(draft_scheduler, draft_max_num_batched_tokens=9, **DRAFT).max_num_batched_tokens >= 8192


def test_a_draft_with_a_cache_of_its_own_limits_the_blocks(tmp_path):
    """If its cache ran out first, all requests would end."""
    (tmp_path / "config.json").write_text(
        json.dumps({"num_hidden_layers": 1000, "num_attention_heads": 64, "hidden_size": 64 * 64})
    )
    limited, shared = (Config(draft_model_path=str(tmp_path), draft_cache_size=size) for size in (1, 0))
    assert 0 < draft_blocks(limited, settings.resolve(limited, GB)) < 10
    assert draft_blocks(shared, settings.resolve(shared, GB)) == 0


def test_a_draft_option_without_a_draft_stops_the_start():
    values = {"device": "CPU", "cache_size": 1, "max_num_seqs": 1, "max_num_batched_tokens": 1, "eagle3_mode": True}
    for name, value in values.items():
        with pytest.raises(StartError, match=f"--draft_{name} needs --draft_model_path"):
            Config(**{f"draft_{name}": value})


# --- on the engine


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"plugin_config": '{"NOPE": 1}'}, "--plugin_config: Unsupported property NOPE"),
        ({"plugin_config": '{"INFERENCE_NUM_THREADS": "lots"}'}, "--plugin_config: .*INFERENCE_NUM_THREADS"),
        ({"kv_cache_precision": "x9"}, "--kv_cache_precision must be one of.*x9"),
        (
            {"cache_eviction_config": json.dumps({**EVICTION, "start_size": 33})},
            "--cache_eviction_config: .*start_size",
        ),
        ({"draft_eagle3_mode": True, **DRAFT}, "--draft_eagle3_mode"),
    ],
)
def test_what_the_engine_does_not_take_is_an_error_with_its_option(options, message):

    with pytest.raises(StartError, match=message) as caught:
        load_text_model(Config(**options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"cache_eviction_config": json.dumps(EVICTION), "max_num_batched_tokens": 64},
        {"sparse_attention_config": '{"num_last_dense_tokens_in_prefill": 32}'},
        {"sparse_attention_config": '{"mode": "XATTENTION"}', "cache_interval_multiplier": 2},
    ],
)
def test_settings_of_the_cache_are_computed_with(options):
    from tests.engine.rig import Rig

    rig = Rig(pipeline=load_text_model(Config(**options)))
    lengths = (1, 31, 32, 33, 65, 300)
    requests = [rig.submit([40 + n % 90] * n, max_tokens=9, ignore_eos=True) for n in lengths]
    rig.run()
    assert {rig.answer(r).reasons[0] for r in requests} == {"length"}
    assert rig.stats().recoveries == 0


@pytest.mark.parametrize("cap", [None, 50.0])
def test_what_the_pipeline_does_not_have_is_logged_and_compiled_models_are_kept(cap, tmp_path, caplog):
    for file in Config().model_dir.iterdir():
        (tmp_path / file.name).symlink_to(file)
    known = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({**known, "attn_logit_softcapping": cap}))
    kept, cache = str(tmp_path / "kept"), tmp_path / "cache"
    options = {"pipeline_type": "LM_CB", "prefix_cache_path": kept, "cache_dir": str(cache)}
    load_text_model(Config(model_path=str(tmp_path), **options))
    assert any(cache.iterdir())
    assert ("exports for LM_CB lack the soft cap of its attention" in caplog.text) is (cap is not None)
    said = "--prefix_cache_path has no effect: it needs the prefix cache of PAGED, but the pipeline is LM_CB"
    assert said in caplog.text
