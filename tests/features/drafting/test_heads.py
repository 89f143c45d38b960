"""Heads for multi-token prediction and Eagle-3: answers are the same as without them, and their logits are
torch's."""

import json
import re
import tarfile

import numpy as np
import openvino as ov
import pytest
from openvino._offline_transformations import paged_attention_transformation

from lean_ovms.config import Config
from lean_ovms.engine.loading import settings
from lean_ovms.engine.paged.network import NotPageable
from lean_ovms.engine.worker.text_model import load_text_model
from lean_ovms.errors import StartError
from lean_ovms.features.drafting.child import heads
from lean_ovms.features.drafting.child.drafter import Drafter
from lean_ovms.features.drafting.child.head import Head
from tests.archives import extract
from tests.engine.rig import Rig
from tests.features.vision.child.models import F32, ZOO, load
from tests.makers.zoo_vision_torch import PROMPTS, SIZES, pixels

HEADS = ZOO / "heads"
EAGLE3 = ZOO.parent / "eagle3_model.tar.xz"
RECORDED = json.loads((HEADS / "answers.json").read_text())
with tarfile.open(EAGLE3) as archive:
    RECORDED["eagle3"] = json.load(archive.extractfile("answers.json"))
FIRST_LAYER = re.compile(r"\.(layers|h)\.0\b")
SAMPLE = Drafter._sample
LAYERS = {"eagle3": 10}
"""The number of layers with attention; 1 for other models."""
pytestmark = pytest.mark.model


def with_head(name, directory):
    """Returns the path of a model with its head."""
    archives = ("tokenizer", name) if name != "eagle3" else ("tokenizer",)
    for archive in (*(ZOO / f"{each}.tar.xz" for each in archives), HEADS / f"{name}.tar.xz"):
        extract(archive if archive.is_file() else EAGLE3, directory)
    return directory


def drafting(name, directory, on=True):
    """Returns the options with which a model's head drafts tokens, or does not."""
    if name == "eagle3":
        return {"draft_model_path": str(directory / "eagle3")} if on else {}
    return {"mtp": "auto" if on else "false"}


def ask(rig, texts, prompt):
    """Returns the answers to requests of many kinds that begin one after the other, in two rounds; the second uses the
    prefix cache."""
    numbers = []
    for number, ids in enumerate(texts + texts):
        fields = (
            {"logprobs": True, "top_logprobs": 2},
            {"temperature": 0.8, "seeds": (3, 4), "n": 2},
            {"stop_token_ids": [texts[2][prompt + 20]], "ignore_eos": False},
            {"temperature": 1.0, "seeds": (5,), "repetition_penalty": 1.2, "logprobs": True},
        )[number % 4]
        numbers.append(rig.submit(ids[: prompt - 7 * (number % 4)], **{"max_tokens": 60, "ignore_eos": True, **fields}))
        if number % 2:
            rig.turn()
    numbers.append(rig.submit(texts[0][:30], max_tokens=20, beams=3))
    if rig.backend.image_queue is not None:
        numbers.append(rig.see(PROMPTS["one"], (*SIZES[0], pixels(0)), max_tokens=30, ignore_eos=True))
    rig.run()
    return [rig.answer(number) for number in numbers]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RECORDED))
def test_answers_are_those_without_the_head(name, tmp_path):
    """There is room for all sequences, or, with one head of each kind, so few blocks that sequences are preempted."""
    texts, prompt = RECORDED[name]["texts"], RECORDED[name]["prompt"]
    path, found, sizes = with_head(name, tmp_path), [], []
    for on, blocks in ((False, 400), (True, 400), (True, 14))[: 2 if name == "qwen3_5_moe" else 3]:
        rig = load(path, blocks, compiled_twice=on and blocks == 400, shared=True, **drafting(name, path, on))
        rig.pipeline._overlapping = blocks == 400
        found.append(ask(rig, texts, prompt))
        stats = rig.stats()
        assert stats.speculative is on
        assert stats.kv_blocks_used == 0
        sizes.append(sum(part.nbytes for part in rig.pipeline._model.block_buffers(0)))
        assert sizes[-1] == rig.pipeline._model.block_bytes
        assert not on or stats.accepted > stats.drafted / 3
    layers = LAYERS.get(name, 1)
    assert sizes[1] * layers == sizes[0] * (layers + 1)  # the head has one layer
    for plain, *drafted in zip(*found, strict=True):
        for one in drafted:
            assert one.failed is plain.failed is None
            assert one.tokens == plain.tokens
            assert one.reasons == plain.reasons
            for index, logprobs in plain.logprobs.items():
                assert one.logprobs[index] == pytest.approx(logprobs, abs=1e-3)


def exchange(drafter, drafting, *inputs):
    """Samples draft tokens, and exchanges the first with its alternative."""
    going_on = SAMPLE(drafter, drafting, *inputs)
    for draft in drafting:
        sequence = draft.sequence
        if sequence.alternatives and len(sequence.draft_tokens) == 1:
            sequence.draft_tokens, sequence.alternatives = sequence.alternatives, sequence.draft_tokens
            draft.text.ids[-1], draft.alternative = draft.alternative, draft.text.ids[-1]
    return going_on


@pytest.mark.slow
@pytest.mark.parametrize(("name", "exchanged"), [*((name, False) for name in sorted(RECORDED)), ("eagle3", True)])
def test_draft_tokens_are_those_of_torch(name, exchanged, tmp_path, monkeypatch):
    """Compares draft tokens after the main model's hidden states, for prompts computed in parts and side by side.

    They are compared again with the prefix cache, and for Eagle-3 also after the head's own hidden states. Then the
    likeliest and the second token are exchanged, so that the alternative is often accepted.
    """
    found, run = {}, Head._run
    if exchanged:
        monkeypatch.setattr(Drafter, "_sample", exchange)

    def recorded(head, chunks, rows, drafting):
        logits = run(head, chunks, rows, drafting)
        for draft, line in zip(drafting, np.array(logits), strict=False):
            likeliest = int(line.argmax())
            logprob = line[likeliest] - np.log(np.exp(line.astype(np.float64)).sum())
            behind = len(draft.text.ids) - draft.base
            found[draft.text.request.id, draft.base - 2, behind] = likeliest, float(logprob)
        return logits

    rig = load(with_head(name, tmp_path), compiled_twice=False, shared=True, **drafting(name, tmp_path))
    known = RECORDED[name]
    monkeypatch.setattr(Head, "_run", recorded)
    numbers = []
    for alone in (False, True):
        for ids in known["texts"]:
            numbers.append(rig.submit(ids[: known["prompt"]], max_tokens=60, ignore_eos=True))
            if alone:
                rig.run()
        rig.run()
    for number in numbers:
        place = numbers.index(number) % len(known["texts"])
        assert (rig.answer(number).cached > 0) is (number in numbers[len(known["texts"]) :])
        assert rig.answer(number).tokens[0] == known["texts"][place][known["prompt"] :]
        assert len([at for request, at, behind in found if request == number and not behind]) > 10
    assert len([at for _, at, behind in found if behind == 1]) > 20 or exchanged
    assert rig.stats().accepted > 50
    for (number, at, behind), (token, logprob) in found.items():
        kind, place = ("", "second_", "third_")[behind], numbers.index(number) % len(known["texts"])
        if f"{kind}tokens" in known and not (behind and exchanged):
            assert token == known[f"{kind}tokens"][place][at]
            assert logprob == pytest.approx(known[f"{kind}logprobs"][place][at], abs=5e-3)


def test_who_asks_for_a_head_gets_it_or_a_reason(tmp_path):
    def speculative(paged=True, **options):
        return settings.resolve(Config(model_path=str(tmp_path), **options), 1 << 30, paged=paged).speculative

    assert speculative() == ""
    with pytest.raises(StartError, match=r"--mtp true: there is no .*openvino_mtp_model\.xml"):
        speculative(mtp="true")
    (tmp_path / "openvino_mtp_model.xml").touch()
    assert speculative() == speculative(mtp="true") == "mtp"
    assert speculative(mtp="false") == speculative(paged=False) == ""
    assert speculative(prompt_lookup=True) == "prompt_lookup"
    assert speculative(draft_model_path=str(tmp_path)) == "draft"
    with pytest.raises(StartError, match="--mtp true cannot be used"):
        speculative(mtp="true", prompt_lookup=True)
    with pytest.raises(StartError, match="needs the PAGED"):
        speculative(mtp="true", paged=False)


def test_an_eagle3_head_is_known_by_its_config_or_an_option(tmp_path):
    def speculative(paged=True, **options):
        config = Config(model_path=str(tmp_path), draft_model_path=str(tmp_path), **options)
        return settings.resolve(config, 1 << 30, paged=paged).speculative

    assert speculative() == "draft"
    assert speculative(draft_eagle3_mode=True) == "eagle3"
    assert speculative(paged=False, draft_eagle3_mode=True) == "draft"
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"]}')
    assert speculative() == "eagle3"


@pytest.mark.slow
def test_a_head_that_does_not_fit_is_refused(tmp_path):
    path = with_head("eagle3", tmp_path)
    with pytest.raises(NotPageable, match="it is not a head: it has no input hidden_states"):
        load(path, draft_model_path=str(path), draft_eagle3_mode=True)
    config = json.loads((path / "eagle3" / "config.json").read_text())
    for layers, message in (
        ([1, 5, 10], "the layers \\[1, 5, 10\\], but the model has 10"),
        ([1, 5], "belongs to another model: it does not read 64 numbers"),
    ):
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": layers}
        (path / "eagle3" / "config.json").write_text(json.dumps(config))
        with pytest.raises(NotPageable, match=message):
            load(path, draft_model_path=str(path / "eagle3"))


@pytest.mark.slow
@pytest.mark.parametrize("archive", sorted((ZOO.parent / "zoo").glob("*.tar.xz")), ids=lambda path: path.name[:-7])
def test_what_enters_a_layer_is_found_in_all_architectures(archive, tmp_path):
    extract(archive, tmp_path)
    model = ov.Core().read_model(tmp_path / "openvino_model.xml")
    paged_attention_transformation(model)
    if any("_state_table." in node.get_friendly_name() for node in model.get_parameters()):
        with pytest.raises(NotPageable, match="layers without attention"):
            heads._layer_inputs(model, [1])
        return
    [found] = heads._layer_inputs(model, [1])
    assert FIRST_LAYER.search(found.get_node().get_friendly_name())
    assert not any(FIRST_LAYER.search(reader.get_node().get_friendly_name()) for reader in found.get_target_inputs())


@pytest.mark.slow
def test_a_dflash_head_drafts_for_one_greedy_request_after_the_other(tmp_path, caplog):
    path, known = with_head("eagle3", tmp_path), RECORDED["eagle3"]
    exact = {"kv_cache_precision": "f32", "plugin_config": json.dumps(F32), "cache_size": 1}
    backend = load_text_model(Config(model_path=str(path), draft_model_path=str(path / "dflash"), **exact))
    assert "greedily and one at a time" in caplog.text
    rig = Rig(pipeline=backend)
    with_seed = rig.submit(known["texts"][0][:20], temperature=0.8, seeds=(1,), max_tokens=5)
    cancelled = rig.submit(known["texts"][0][:40], max_tokens=60, ignore_eos=True)
    numbers = [rig.submit(ids[:40], max_tokens=60, ignore_eos=True, n=2) for ids in known["texts"]]
    rig.turn(4)
    assert rig.stats().running == 1
    rig.cancel(cancelled)
    rig.run()
    assert "temperature must be 0 with a DFlash draft model" in str(rig.answer(with_seed).refused)
    for number, ids in zip(numbers, known["texts"], strict=True):
        assert rig.answer(number).tokens == {0: ids[40:], 1: ids[40:]}
    assert rig.stats().recoveries == 0
