"""One tiny random model of each architecture (tests/makers/zoo.py): the tokens and log probabilities of transformers in
torch, which tests/makers/zoo_torch.py recorded, or openvino_genai's.

Prompts are longer than a block, a chunk and the sliding windows, and several are computed together.
"""

import json
import random
from pathlib import Path

import pytest

from lean_ovms.config import Config
from lean_ovms.engine.loading.pipeline_choice import PROVEN
from lean_ovms.engine.paged import ir_weights
from lean_ovms.engine.paged.ir_weights import open_weights
from lean_ovms.engine.paged.model import PagedModel
from lean_ovms.engine.paged.network import TREE_MASK, Miscounting, NotPageable
from lean_ovms.engine.worker.text_model import load_text_model
from lean_ovms.errors import StartError
from lean_ovms.features.drafting.child.draft_source import BudgetedDrafts
from lean_ovms.features.genai_pipelines.child import factory
from tests.archives import extract
from tests.engine.real import EXACT, load
from tests.engine.rig import Rig

ZOO = Path(__file__).parents[2] / "data" / "zoo"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in ZOO.glob("*.tar.xz"))
RECORDED = json.loads((ZOO / "answers.json").read_text())
VOCAB = 64
HYBRIDS = {"granitemoehybrid", "lfm2", "lfm2_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"}
"""Models that keep a state for each sequence."""
pytestmark = pytest.mark.model


def test_every_proven_architecture_is_in_the_zoo():
    assert {name.partition("-")[0] for name in NAMES} == PROVEN  # variants are named NAME-VARIANT


def prompts():
    dice = random.Random(5)
    return [[dice.randrange(3, VOCAB) for _ in range(length)] for length in (3, 40, 100)]


def known_texts(name):
    """Returns the prompts with torch's answers."""
    return [ids + answer for ids, (answer, _) in zip(prompts(), RECORDED[name], strict=True)]


def in_f32(name, directory, **options):
    """Returns the paged engine with a model of the zoo, which computes in f32."""
    config = {**json.loads(EXACT["plugin_config"]), "INFERENCE_PRECISION_HINT": "f32"}
    fixed = {"pipeline_type": "PAGED", "max_num_batched_tokens": 64, "plugin_config": json.dumps(config)}
    return load(60, model_path=unpacked(name, directory), **fixed, **options)


def assert_same(found, wanted, error):
    """Checks that tokens are equal, and that log probabilities differ by at most this."""
    assert [ids for ids, _ in found] == [ids for ids, _ in wanted]
    for (_, ours), (_, theirs) in zip(found, wanted, strict=True):
        assert ours == pytest.approx(theirs, abs=error)


def answers(pipe, **options):
    """Returns tokens and log probabilities of prompts that arrive one after the other."""
    rig, numbers = Rig(pipeline=pipe), []
    for tokens in prompts():
        numbers.append(rig.submit(tokens, max_tokens=20, ignore_eos=True, logprobs=True, **options))
        rig.turn()
    rig.run()
    return [(rig.answer(number).tokens[0], rig.answer(number).logprobs[0]) for number in numbers]


def unpacked(name, directory):
    """Returns the path of a model of the zoo."""
    extract(ZOO / f"{name}.tar.xz", directory)
    for file in Config().model_dir.glob("openvino_*tokenizer.*"):  # any tokenizer will do, because only ids are used
        (directory / file.name).symlink_to(file)
    return str(directory)


@pytest.mark.slow
def test_a_draft_of_another_architecture_changes_nothing(tmp_path):
    """One of them has attention sinks and sliding windows, the other neither."""
    for name in ("gpt_oss", "llama"):
        (tmp_path / name).mkdir()
    options = {"blocks": 60, "model_path": unpacked("gpt_oss", tmp_path / "gpt_oss"), "max_num_batched_tokens": 64}
    draft = unpacked("llama", tmp_path / "llama")
    plain, assisted = (
        answers(load(pipeline_type="PAGED", **options, **more)) for more in ({}, {"draft_model_path": draft})
    )
    assert_same(assisted, plain, 1e-3)


def test_a_hybrid_is_no_draft_model(tmp_path):
    path = unpacked("lfm2", tmp_path)
    with pytest.raises(NotPageable, match="the draft model has a state"):
        load(pipeline_type="PAGED", blocks=60, model_path=path, draft_model_path=path)


@pytest.mark.parametrize("name", ["granitemoehybrid-rope", "qwen3_5_text"])
def test_positions_that_cannot_become_an_input_are_refused(name, tmp_path, monkeypatch):
    """Otherwise all tokens of a step would have the same position."""
    monkeypatch.setattr(ir_weights, "connect_positions", lambda model: None)
    path = Path(unpacked(name, tmp_path))
    with pytest.raises(Miscounting, match="positions"):
        PagedModel(open_weights(path / "openvino_model.xml"), "CPU", {})


@pytest.mark.parametrize(("name", "pipeline"), [("granitemoehybrid-rope", "LM"), ("llama", "LM_CB")])
def test_auto_finds_out_whether_an_unknown_architecture_counts_its_positions(name, pipeline, tmp_path, monkeypatch):
    path = Path(unpacked(name, tmp_path))
    (path / "config.json").write_text('{"model_type": "newest"}')
    chosen = []

    def load(config, kind, available):
        chosen.append(kind)
        raise StartError("enough")

    monkeypatch.setattr(factory, "load", load)
    with pytest.raises(StartError, match="enough"):
        load_text_model(Config(model_path=str(path)))
    assert chosen == [pipeline]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RECORDED))
def test_tokens_and_log_probabilities_are_those_of_torch(name, tmp_path):
    pipe = in_f32(name, tmp_path, compiled_twice=name in HYBRIDS)
    assert_same(answers(pipe), RECORDED[name], 5e-3)
    assert (pipe.info.state_bytes > 0) is (pipe.info.max_sequences > 0) is (name in HYBRIDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*NAMES} - {*RECORDED}))
def test_tokens_and_log_probabilities_are_openvino_genais(name, tmp_path):
    path = unpacked(name, tmp_path)
    wanted, found = (
        answers(load(60, compiled_twice=False, model_path=path, pipeline_type=kind, max_num_batched_tokens=64))
        for kind in ("LM_CB", "PAGED")
    )
    assert_same(found, wanted, 1e-3)
    assert len({token for ids, _ in found for token in ids}) > 3  # the answers differ between prompts


class Oracle:
    """A drafter that proposes torch's next tokens. Every third draft has a wrong token in the middle.

    `alternatives` is the number of draft tokens with an alternative, which is right where the draft token is wrong.
    """

    def __init__(self, known, alternatives=0):
        self._known = [list(text) for text in known]
        self._alternatives = alternatives
        self._drafts = 0

    def propose(self, wanted):
        for sequence, most in wanted:
            ids = list(sequence.ids)
            following = next((text[len(ids) :] for text in self._known if text[: len(ids)] == ids), [])[:most]
            self._drafts += 1
            if self._drafts % 3 == 0 and following:
                following[len(following) // 2] ^= 1
            sequence.draft_tokens = following
            sequence.alternatives = [token ^ 1 for token in following[: self._alternatives]]

    def computed(self, decoding, chunks):
        pass

    def leave(self, sequence):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("name", ["glm4", "mixtral", "phi"])
def test_alternatives_to_draft_tokens_change_nothing(name, tmp_path):
    """The tokens and log probabilities are torch's, and some of the alternatives are right. Three of four draft tokens
    have alternatives, with every second architecture all of them."""
    pipe = in_f32(name, tmp_path, compiled_twice=False, draft_model_path=str(tmp_path))
    assert TREE_MASK in pipe._model.inputs
    accepted = []
    for number in (0, 3 + len(name) % 2):
        before = pipe.stats().accepted
        pipe.scheduler.speculation.source = BudgetedDrafts(Oracle(known_texts(name), number))
        found = answers(pipe, num_assistant_tokens=4)
        accepted.append(pipe.stats().accepted - before)
        assert_same(found, RECORDED[name], 5e-3)
    assert accepted[1] > accepted[0]
    assert pipe.blocks.available == pipe.blocks.total


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma2", "granitemoehybrid", "lfm2", "qwen3_5_text"])
def test_hybrids_and_soft_caps_with_a_prefix_cache_have_torchs_tokens_in_any_order(name, tmp_path):
    """Sequences are preempted, with and without draft tokens, and blocks are not adjacent. A prompt may end anywhere in
    one of torch's answers, because its continuation is known."""
    options = {"enable_prefix_caching": True, "cache_interval_multiplier": 1, "prompt_lookup": True}
    pipe = in_f32(name, tmp_path, compiled_twice=False, **options)
    for drafts in (False, True):
        assert_torchs_in_any_order(name, pipe, drafts=drafts)
        assert pipe.scheduler.checkpoints.interval == 32 or name not in HYBRIDS
        pipe.blocks.clear_cache()


def assert_torchs_in_any_order(name, pipe, *, drafts):
    """Checks what the tests above claim, starting with an empty prefix cache and no accepted draft tokens."""
    preemptions, dice = pipe.scheduler.preemptions, random.Random(5)
    texts = known_texts(name)
    pipe.scheduler.speculation.source = BudgetedDrafts(Oracle(texts if drafts else []))
    asked = [(which, len(prompts()[which]) + more) for which in range(3) for more in (0, 5, 12, 19)]
    cached = 0
    for _ in range(2):
        dice.shuffle(asked)
        rig, numbers = Rig(pipeline=pipe), []
        for which, length in asked:
            left = len(texts[which]) - length
            asking = {"max_tokens": left, "ignore_eos": True, "logprobs": True, "num_assistant_tokens": 4}
            numbers.append(rig.submit(texts[which][:length], **asking))
            for _ in range(dice.randrange(4)):
                if not rig.task.idle or rig.transport.inbox:
                    rig.turn()
            if pipe.scheduler.batch.decoding and dice.random() < 0.5:
                pipe.scheduler.preempt(dice.choice(pipe.scheduler.batch.decoding))
        rig.run()
        for number, (which, length) in zip(numbers, asked, strict=True):
            answer, left = rig.answer(number), len(texts[which]) - length
            assert answer.tokens[0] == texts[which][length:]
            assert answer.logprobs[0] == pytest.approx(RECORDED[name][which][1][-left:], abs=5e-3)
            cached = max(cached, answer.cached)
    assert cached == 96
    assert pipe.scheduler.preemptions > preemptions
    assert bool(pipe.stats().accepted) is drafts
    assert pipe.states.available == pipe.states.total
