"""The paged engine and openvino_genai give the same greedy tokens, beams and log probabilities on the demo model."""

import json
import random
from dataclasses import replace
from pathlib import Path

import openvino as ov
import pytest

from lean_ovms import lora_modules
from lean_ovms.config import Config
from lean_ovms.engine.genai import pipeline_choice, settings
from lean_ovms.engine.genai.continuous import ContinuousPipeline
from lean_ovms.engine.genai.grammar_compiler import stand_in
from lean_ovms.engine.generation.pipeline import PipelineRequest
from lean_ovms.engine.paged.engine import Engine
from lean_ovms.engine.paged.model import NotPageable, PagedModel
from lean_ovms.engine.paged.params import Params
from lean_ovms.engine.paged.pipeline import PagedPipeline
from lean_ovms.errors import StartError
from lean_ovms.types import SamplingParams
from tests.engine.real import EXACT, QUESTIONS, chat, load
from tools.make_lora import make

LLAMA = Path(__file__).parents[2] / "data" / "llama_sp"
pytestmark = pytest.mark.model
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
BEAMS = replace(GREEDY, beams=4, n=4, ignore_eos=False)


@pytest.fixture(scope="module")
def paged():
    return load(blocks=600, enable_prefix_caching=True, pipeline_type="PAGED")


@pytest.fixture(scope="module")
def genai():
    return load(blocks=600, enable_prefix_caching=True)


def work(tokens, max_tokens, sampling=GREEDY, **changes):
    fields = {"min_tokens": 0, "seed": 0, "stops": frozenset(), **changes}
    return PipelineRequest(tokens=tokens, sampling=sampling, max_tokens=max_tokens, **fields)


def prompts(pipe, count=90):
    """Questions, random ids around the borders of blocks and chunks, shared beginnings."""
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


def answers(pipe, asked):
    """Each added at its own step, as they come."""
    dice = random.Random(3)
    waiting = sorted(((dice.randrange(60), number) for number in range(len(asked))), reverse=True)
    handles, texts, step = {}, [[] for _ in asked], 0
    while waiting or pipe.busy():
        while waiting and waiting[-1][0] <= step:
            number = waiting.pop()[1]
            handles[number] = pipe.add(work(asked[number], 24))
        pipe.step()
        step += 1
        for number, handle in handles.items():
            while handle.can_read():
                texts[number] += handle.read()[0].generated_ids
    return texts


@pytest.mark.slow
def test_greedy_tokens_are_the_same_with_shared_prefixes_and_random_arrivals(paged, genai):
    asked = prompts(paged)
    wanted = answers(genai, asked)
    assert answers(paged, asked) == wanted
    assert answers(paged, asked) == wanted  # and once more, with everything in the prefix cache
    assert paged._engine.scheduler.preemptions == 0


@pytest.mark.slow
def test_greedy_tokens_are_the_same_in_small_chunks_and_under_preemption(genai):
    tight = load(blocks=32, enable_prefix_caching=True, pipeline_type="PAGED", max_num_batched_tokens=64)
    asked = prompts(tight, 40)
    assert answers(tight, asked) == answers(genai, asked)
    assert tight._engine.scheduler.preemptions > 0
    assert tight._engine.blocks.available == 32


@pytest.mark.slow
def test_greedy_tokens_are_the_same_as_the_device_computes_by_default():
    """With a compressed cache, and bf16 where there is AMX, answers depend on what is computed together; the same
    requests in the same order are computed together in both.
    """
    config = Config()
    made = replace(settings.resolve(config, 1 << 30), blocks=600)
    pipes = [ContinuousPipeline(config, made), PagedPipeline(replace(config, pipeline_type="PAGED"), made)]
    for prompt in prompts(pipes[0], 40):
        both = []
        for pipe in pipes:
            handle, ids = pipe.add(work(prompt, 16)), []
            while pipe.busy():
                pipe.step()
                while handle.can_read():
                    ids += handle.read()[0].generated_ids
            both.append(ids)
        assert both[0] == both[1]


def test_greedy_tokens_of_a_llama_with_sentencepiece_are_the_same():
    dice, found = random.Random(1), []
    asked = [[dice.randrange(3, 640) for _ in range(size)] for size in (1, 5, 40, 100, 200, 300)]
    for kind in ("LM_CB", "PAGED"):
        found.append(answers(load(blocks=300, model_path=str(LLAMA), pipeline_type=kind), asked))
    assert found[0] == found[1]


def test_a_network_that_is_compiled_twice_has_one_cache():
    """Parts of prompts are computed by one, single tokens by the other, in turns."""
    dice, found = random.Random(2), []
    asked = [[dice.randrange(3, 640) for _ in range(size)] for size in (3, 90, 150)]
    for twice in (False, True):
        network = PagedModel(LLAMA / "openvino_model.xml", "CPU", {}, twice=twice)
        sizes = {"blocks": 40, "block_size": 32, "context": 256, "step_tokens": 32, "max_sequences": 8}
        engine = Engine(network, **sizes, clock=lambda: 0.0)  # parts of prompts do not depend on time
        requests = [engine.add(ids, Params(max_tokens=30)) for ids in asked]
        while engine.busy():
            engine.step()
        found.append([request.sequences[0].ids for request in requests])
    assert found[0] == found[1]
    assert [len(ids) for ids in found[1]] == [33, 120, 180]


def test_a_network_without_a_last_projection_is_refused(tmp_path):
    """Its logits would be computed for every token of a prompt."""
    ov.save_model(stand_in(64), tmp_path / "openvino_model.xml")
    with pytest.raises(NotPageable, match="last projection"):
        PagedModel(tmp_path / "openvino_model.xml", "CPU", {})


@pytest.mark.parametrize("penalty", [0.5, 1.0, -1.0])
def test_beams_are_the_same(paged, genai, penalty):
    for question in QUESTIONS[:4]:
        tokens = paged.encode(chat(question), False)
        both = []
        for pipe in (genai, paged):
            sampling = replace(BEAMS, length_penalty=penalty)
            handle = pipe.add(work(tokens, 16, sampling, stops=frozenset(pipe.info.eos_token_ids)))
            while pipe.busy():
                pipe.step()
            both.append(sorted(handle.read().values(), key=lambda output: -output.score))
        assert [o.generated_ids for o in both[0]] == [o.generated_ids for o in both[1]]
        assert [o.score for o in both[0]] == pytest.approx([o.score for o in both[1]], abs=1e-3)


def test_log_probabilities_are_the_same(paged, genai):
    logprobs = []
    for pipe in (genai, paged):
        tokens = pipe.encode(chat("What is the capital of France?"), False)
        handle, values = pipe.add(work(tokens, 12, replace(GREEDY, logprobs=True))), []
        while pipe.busy():
            pipe.step()
            if handle.can_read():
                values += handle.read()[0].generated_log_probs
        logprobs.append(values)
    assert len(logprobs[0]) == 12
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)


def test_an_echo_is_the_same_with_a_warm_cache_as_openvino_genais_without(paged, engine):
    dice = random.Random(5)
    tokens = [dice.randrange(3, 2000) for _ in range(300)]
    logprobs = []
    for pipe in (engine, paged, paged):
        handle = pipe.add(work(tokens, 2, replace(GREEDY, logprobs=True), echo=True))
        while not handle.can_read():
            pipe.step()
        logprobs.append(handle.read()[0].generated_log_probs[1:])
        while pipe.busy():
            pipe.step()
    assert len(logprobs[0]) == 300
    assert logprobs[0] == pytest.approx(logprobs[1], abs=2e-3)
    assert logprobs[1] == pytest.approx(logprobs[2], abs=1e-4)


def test_a_model_that_drafts_for_itself_is_right_every_time(paged):
    """The same tokens, drawn ones too, and log probabilities, in a sixth of the steps. Beams are not guessed for."""
    assisted = load(blocks=600, pipeline_type="PAGED", draft_model_path=str(Config().model_dir))
    assert assisted.info.speculative == "draft"
    found = []
    for pipe in (paged, assisted):
        before, texts, logprobs = pipe._engine.steps, [[], []], [[], []]
        handles = []
        for temperature, question in zip((0.0, 0.9), QUESTIONS, strict=False):
            asked = replace(GREEDY, temperature=temperature, logprobs=True, num_assistant_tokens=5)
            handles.append(pipe.add(work(pipe.encode(chat(question), False), 25, asked, seed=7)))
        while pipe.busy():
            pipe.step()
            for handle, ids, values in zip(handles, texts, logprobs, strict=True):
                if handle.can_read():
                    output = handle.read()[0]
                    ids += output.generated_ids
                    values += output.generated_log_probs
        steps = pipe._engine.steps - before
        search = pipe.add(work(pipe.encode(chat(QUESTIONS[2]), False), 12, BEAMS))
        while pipe.busy():
            pipe.step()
        beams = [output.generated_ids for output in search.read().values()]
        found.append(((texts, beams), logprobs[0] + logprobs[1], steps))
    assert found[0][0] == found[1][0]
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-3)
    assert (found[0][2], found[1][2]) == (25, 5)


def test_steps_without_adapters_have_none_of_their_operations(paged, tmp_path):
    """A text without an adapter that goes on in both networks reads in each what the other one wrote to the cache."""
    both = load(blocks=600, enable_prefix_caching=True, pipeline_type="PAGED", allow_runtime_lora=True)
    adapter = lora_modules.dumps(lora_modules.Module("a", str(make(tmp_path / "a")), 2.0))
    tokens = both.encode(chat("Count from 1 to 9."), False)
    table = both._model._networks
    counted = {id(request): Counted(request) for request in table.values()}
    table.update({kind: counted[id(request)] for kind, request in table.items()})
    [wanted] = answers(paged, [tokens])
    plain, ids = both.add(work(tokens, 24)), []
    both.step()
    other = both.add(work(tokens, 5, adapter=adapter))
    while both.busy():
        both.step()
        ids += plain.read()[0].generated_ids if plain.can_read() else []
    assert plain.status == other.status == "finished"
    assert ids == wanted
    assert other.read()[0].generated_ids != wanted[:5]
    assert table[False, False].count + table[False, True].count == 19
    assert table[True, False] is table[True, True]
    assert table[True, True].count == 5


class Counted:
    """An infer request, and how often it was computed."""

    def __init__(self, request):
        self._request = request
        self.count = 0

    def infer(self, **options):
        self.count += 1
        self._request.infer(**options)

    def get_output_tensor(self, index):
        return self._request.get_output_tensor(index)


def test_requests_with_a_grammar_and_others_together(paged):
    """JSON that ends by itself, beside a request without a grammar."""
    form = {"type": "grammar", "grammar": 'root ::= "{" ("\\"a\\": " [0-9]{1,3})? "}"'}
    tag = json.dumps({"type": "structural_tag", "format": form})
    tokens = paged.encode(chat("Give me JSON."), False)
    ends = frozenset(paged.info.eos_token_ids)
    hot = SamplingParams(temperature=1.5)
    handles = [paged.add(work(tokens, 40, hot, seed=i, stops=ends, constraint=tag)) for i in range(4)]
    plain = paged.add(work(tokens, 10))
    texts = ["", "", "", ""]
    while paged.busy():
        paged.step()
        for place, handle in enumerate(handles):
            if handle.can_read():
                texts[place] += paged.decode(handle.read()[0].generated_ids, True)
    assert all(json.loads(text).keys() <= {"a"} for text in texts)
    assert len(plain.read()[0].generated_ids) == 10


def test_penalties_have_the_sign_of_the_definition(paged):
    """openvino_genai raises logits below zero with a penalty; here a large one keeps every token from coming twice."""
    tokens = paged.encode(chat("Count from 1 to 9."), False)
    handle, ids = paged.add(work(tokens, 30, replace(GREEDY, frequency_penalty=2.0, presence_penalty=2.0))), []
    plain, again = paged.add(work(tokens, 30)), []
    while paged.busy():
        paged.step()
        for each, into in ((handle, ids), (plain, again)):
            if each.can_read():
                into += each.read()[0].generated_ids
    assert len(set(ids)) > len(set(again))


def test_the_cache_is_as_large_as_the_option():
    config = Config(**EXACT, pipeline_type="PAGED", cache_size=1)
    pipe = PagedPipeline(config, settings.resolve(config, 1 << 30))
    assert pipe.info.kv_blocks == (1 << 30) // pipe._model.block_bytes
    assert pipe._model.block_bytes == 5 * 2 * 2 * 32 * 32 * 4  # layers, keys and values, heads, tokens, head_dim, f32


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"draft_model_path": "x", "draft_eagle3_mode": True}, "draft_eagle3_mode"),
        ({"draft_model_path": "x", "draft_device": "GPU"}, "draft_device GPU"),
        ({"cache_eviction_config": "{}"}, "cache_eviction_config"),
        ({"sparse_attention_config": "{}"}, "sparse_attention_config"),
        ({"lora_modules": "a=/x"}, "a LoRA adapter for all requests"),
        ({"target_device": "GPU"}, "target_device GPU"),
        ({"model_path": "/x/y.gguf"}, "GGUF"),
    ],
)
def test_what_only_openvino_genai_can_do_stops_the_start(options, what):
    config = Config(pipeline_type="PAGED", **options)
    with pytest.raises(StartError, match=what):
        PagedPipeline(config, settings.resolve(Config(), 1 << 30))


def test_the_paged_engine_without_the_package_for_xgrammar_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(pipeline_choice, "has_xgrammar", lambda: False)
    config = Config(pipeline_type="PAGED", structured_output_backend="xgrammar")
    with pytest.raises(StartError, match="without the package xgrammar; pip install --no-deps xgrammar=="):
        PagedPipeline(config, settings.resolve(Config(), 1 << 30))
