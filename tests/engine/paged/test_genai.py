"""The paged engine and openvino_genai give the same greedy tokens, beams and log probabilities with the demo model."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from lean_ovms.config import Config
from lean_ovms.engine.loading import settings
from lean_ovms.engine.paged import assemble
from lean_ovms.engine.paged.ir_weights import open_weights
from lean_ovms.engine.paged.model import PagedModel
from lean_ovms.engine.paged.network import NotPageable
from lean_ovms.errors import StartError
from lean_ovms.features.genai_pipelines.child.continuous import ContinuousPipeline
from lean_ovms.features.lora import modules as lora_modules
from lean_ovms.features.structured_output.child.genai.compiler import stand_in
from tests.engine.paged.harness import Driver, Params
from tests.engine.real import EXACT, QUESTIONS, chat, load
from tests.engine.rig import Rig
from tests.makers.make_lora import make

LLAMA = Path(__file__).parents[2] / "data" / "llama_sp"
pytestmark = pytest.mark.model
QUESTION = chat("Count from 1 to 9.")
F32 = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture(scope="module")
def paged():
    return load(blocks=600, enable_prefix_caching=True, pipeline_type="PAGED")


@pytest.fixture(scope="module")
def genai():
    return load(blocks=600, enable_prefix_caching=True)


def prompts(pipe, count=30):
    """Returns questions, random ids with lengths around those of blocks and chunks, and shared prefixes."""
    dice = random.Random(7)
    found = [pipe.encode(chat(question), False) for question in QUESTIONS]
    base = [dice.randrange(3, 2000) for _ in range(300)]
    lengths = [1, 2, 31, 32, 33, 63, 64, 65, 100, 255, 256, 257, 400, 600]
    while len(found) < count:
        kind = len(found) % 3
        if kind == 0:
            found.append([dice.randrange(3, 2000) for _ in range(dice.choice(lengths))])
        elif kind == 1:
            found.append(base[: dice.randrange(1, 300)] + [dice.randrange(3, 2000) for _ in range(dice.randrange(40))])
        else:
            found.append(found[dice.randrange(8)] + [dice.randrange(3, 2000) for _ in range(dice.randrange(1, 5))])
    return found


def answers(pipe, asked, max_tokens=24):
    """Returns the answers to requests that are added one per step."""
    dice, rig = random.Random(3), Rig(pipeline=pipe)
    waiting = sorted(((dice.randrange(60), number) for number in range(len(asked))), reverse=True)
    numbers, step = {}, 0
    while waiting or not rig.backend.idle:
        while waiting and waiting[-1][0] <= step:
            number = waiting.pop()[1]
            numbers[number] = rig.submit(asked[number], max_tokens=max_tokens, ignore_eos=True)
        if numbers:
            rig.put()
            rig.turn()
        step += 1
    return [rig.answer(numbers[number]).tokens[0] for number in range(len(asked))]


@pytest.mark.slow
def test_greedy_tokens_are_the_same_with_shared_prefixes_and_random_arrivals(paged, genai):
    asked = prompts(paged)
    wanted = answers(genai, asked)
    assert answers(paged, asked) == wanted
    assert answers(paged, asked) == wanted  # once more, with everything in the prefix cache
    assert paged.scheduler.preemptions == 0


@pytest.mark.slow
def test_greedy_tokens_are_the_same_as_the_device_computes_by_default():
    """With a compressed cache, and bf16 on CPUs with support for it, answers depend on what is computed together. Both
    engines compute the same requests together, because the order is the same."""
    config = Config()
    made = replace(settings.resolve(config, 1 << 30), blocks=600)
    pipes = [ContinuousPipeline(config, made), assemble.load(config.replace(pipeline_type="PAGED"), made)]
    for prompt in prompts(pipes[0], 10):
        both = [answers(pipe, [prompt], 16) for pipe in pipes]
        assert both[0] == both[1]


def test_a_network_that_is_compiled_twice_has_one_cache():
    """One network computes parts of prompts, the other single tokens, in turns."""
    dice, found = random.Random(2), []
    asked = [[dice.randrange(3, 640) for _ in range(size)] for size in (3, 90, 150)]
    for twice in (False, True):
        network = PagedModel(open_weights(LLAMA / "openvino_model.xml"), "CPU", {}, separate_prefill_model=twice)
        sizes = {"blocks": 40, "block_size": 32, "context": 256, "step_tokens": 32, "max_sequences": 8}
        engine = Driver(network, **sizes, clock=lambda: 0.0)  # with this clock, parts of prompts do not depend on time
        requests = [engine.add(ids, Params(max_tokens=30)) for ids in asked]
        while engine.busy():
            engine.step()
        found.append([request.sequences[0].ids for request in requests])
    assert found[0] == found[1]
    assert [len(ids) for ids in found[1]] == [33, 120, 180]


def test_openvino_writes_no_network_that_it_cannot_read(tmp_path):
    PagedModel(open_weights(LLAMA / "openvino_model.xml"), "CPU", {"CACHE_DIR": str(tmp_path)})
    assert [*tmp_path.iterdir()] == []


def test_what_is_wrong_with_a_network_is_said_before_what_is_wrong_with_its_tokenizer(tmp_path):
    def fail():
        raise OSError("no tokenizer")

    ov.save_model(stand_in(64), tmp_path / "openvino_model.xml")
    with pytest.raises(NotPageable, match="last projection"):
        PagedModel(open_weights(tmp_path / "openvino_model.xml"), "CPU", {}, while_compiling=fail)


@pytest.mark.parametrize(("keys", "values"), [("u8", "u4"), ("u4", "u4")])
def test_choices_share_a_prompt_whose_keys_and_values_are_packed(keys, values):
    pipe = load(
        200, pipeline_type="PAGED", kv_cache_precision="", key_cache_precision=keys, value_cache_precision=values
    )
    assert pipe.info.kv_precision == (keys if keys == values else f"{keys}/{values}")
    alone = Rig(pipeline=pipe).ask(QUESTION, max_tokens=30, ignore_eos=True).tokens
    choices = Rig(pipeline=pipe).ask(QUESTION, max_tokens=30, ignore_eos=True, n=3, temperature=0.0).tokens
    assert choices == dict.fromkeys(range(3), alone[0])


@pytest.mark.parametrize("precision", ["u4", "u8", "f32"])
def test_a_block_is_copied_whole(precision):
    """A byte contains two u4 values, and the array does not have the tensor's shape."""
    network = PagedModel(open_weights(LLAMA / "openvino_model.xml"), "CPU", F32 | {"KV_CACHE_PRECISION": precision})
    network.allocate(3, 0)
    tables = [tensor.data.reshape(3, -1) for tensor in network._caches]
    for table in tables:
        table[...] = np.arange(table.size).reshape(table.shape) % 251
    before = [table.copy() for table in tables]
    network.copy_block(1, 2)
    for table, old in zip(tables, before, strict=True):
        assert np.array_equal(table, old[[0, 1, 1]])


@pytest.mark.parametrize("penalty", [0.5, 1.0, -1.0])
def test_beams_are_the_same(paged, genai, penalty):
    for question in QUESTIONS[:4]:
        asked = {"beams": 4, "n": 4, "length_penalty": penalty, "max_tokens": 16}
        both = [Rig(pipeline=pipe).ask(chat(question), **asked).tokens for pipe in (genai, paged)]
        assert both[0] == both[1]


def test_steps_without_adapters_have_none_of_their_operations(paged, tmp_path):
    """A text without an adapter that continues in both networks reads in each what the other has written to the
    cache."""
    both = load(blocks=600, enable_prefix_caching=True, pipeline_type="PAGED", allow_runtime_lora=True)
    adapter = lora_modules.dumps(lora_modules.LoraModule("a", str(make(tmp_path / "a")), 2.0))
    tokens = both.encode(chat("Count from 1 to 9."), False)
    table = both._model._networks
    counted = {id(request): Counted(request) for request in table.values()}
    table.update({kind: counted[id(request)] for kind, request in table.items()})
    [wanted] = answers(paged, [tokens])
    rig = Rig(pipeline=both)
    plain = rig.submit(tokens, max_tokens=24, ignore_eos=True)
    rig.turn()
    other = rig.submit(tokens, max_tokens=5, ignore_eos=True)
    rig.transport.inbox[-1][0].adapter = adapter
    rig.run()
    assert rig.answer(plain).tokens[0] == wanted
    assert rig.answer(other).tokens[0] != wanted[:5]
    assert table[False, False].count + table[False, True].count == 19
    assert table[True, False] is table[True, True]
    assert table[True, True].count == 5


class Counted:
    """An infer request that counts how often it was run."""

    def __init__(self, request):
        self._request = request
        self.count = 0

    def infer(self, **options):
        self.count += 1
        self._request.infer(**options)

    def get_output_tensor(self, index):
        return self._request.get_output_tensor(index)


def test_the_cache_is_as_large_as_the_option():
    config = Config(**EXACT, pipeline_type="PAGED", cache_size=1)
    pipe = assemble.load(config, settings.resolve(config, 1 << 30))
    assert pipe.info.kv_blocks == (1 << 30) // pipe._model.block_bytes
    assert pipe._model.block_bytes == 5 * 2 * 2 * 32 * 32 * 4  # layers, keys and values, heads, tokens, head_dim, f32


def test_slots_do_not_need_a_usable_directory_of_the_prefix_cache(tmp_path, caplog):
    (tmp_path / "file").touch()
    paths = {"prefix_cache_path": str(tmp_path / "file"), "slot_save_path": str(tmp_path / "slots")}
    config = Config(**EXACT, pipeline_type="PAGED", cache_size=1, **paths)
    pipe = assemble.load(config, settings.resolve(config, 1 << 30))
    [slots] = pipe.hooks
    assert "the prefix cache is not kept on disk" in caplog.text
    assert slots.files.save(0, "a.bin")[0] == 0


def test_the_network_is_read_once_for_the_prefix_cache_on_disk_and_slots(tmp_path, caplog, monkeypatch):
    asked = []

    def broken(networks, *_, **__):
        asked.append(networks)
        raise OSError("broken")

    monkeypatch.setattr("lean_ovms.features.disk_cache.child.install.fingerprint", broken)
    paths = {"prefix_cache_path": str(tmp_path / "cache"), "slot_save_path": str(tmp_path / "slots")}
    config = Config(**EXACT, pipeline_type="PAGED", cache_size=1, **paths)
    assert assemble.load(config, settings.resolve(config, 1 << 30)).hooks == []
    assert len(asked) == caplog.text.count("the prefix cache is no longer kept on disk: broken") == 1


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"draft_model_path": "x", "draft_device": "GPU"}, "draft_device GPU"),
        ({"cache_eviction_config": "{}"}, "cache_eviction_config"),
        ({"sparse_attention_config": "{}"}, "sparse_attention_config"),
        ({"lora_modules": "a=/x"}, "a LoRA adapter for all requests"),
        ({"target_device": "GPU"}, "target_device GPU"),
    ],
)
def test_what_only_openvino_genai_can_do_stops_the_start(options, what):
    config = Config(pipeline_type="PAGED", **options)
    with pytest.raises(StartError, match=what):
        assemble.load(config, settings.resolve(Config(), 1 << 30))
