"""Heads for multi-token prediction (tools/zoo_mtp.py): answers are those without them, and their logits are torch's."""

import json
import tarfile

import numpy as np
import pytest

from lean_ovms.config import Config
from lean_ovms.engine.loading import settings
from lean_ovms.engine.paged.drafting.mtp_head import MtpHead
from lean_ovms.errors import StartError
from tests.engine.paged.vision.models import SAFELY, ZOO, load, unpacked
from tools.zoo_vision_torch import PROMPTS, SIZES, pixels

HEADS = ZOO / "heads"
RECORDED = json.loads((HEADS / "answers.json").read_text())
pytestmark = pytest.mark.model


def with_head(name, directory):
    """The path of a model of the zoo, with its head."""
    unpacked(name, directory)
    with tarfile.open(HEADS / f"{name}.tar.xz") as packed:
        packed.extractall(directory, **SAFELY)
    return directory


def ask(rig, texts, prompt):
    """Requests of many kinds, which begin one after the other; two rounds, the second with a prefix cache."""
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
    numbers.append(rig.see(PROMPTS["one"], (*SIZES[0], pixels(0)), max_tokens=30, ignore_eos=True))
    rig.run()
    return [rig.answer(number) for number in numbers]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RECORDED))
@pytest.mark.parametrize("blocks", [400, 14])
def test_answers_are_those_without_the_head(name, blocks, tmp_path):
    texts, prompt = RECORDED[name]["texts"], RECORDED[name]["prompt"]
    path, found, sizes = with_head(name, tmp_path), [], []
    for mtp in ("false", "auto"):
        rig = load(path, blocks, mtp=mtp)
        rig.pipeline._overlapping = blocks == 400
        found.append(ask(rig, texts, prompt))
        stats = rig.stats()
        assert stats.speculative is (mtp == "auto")
        assert stats.kv_blocks_used == 0
        sizes.append(sum(part.nbytes for part in rig.pipeline._model.block_buffers(0)))
        assert sizes[-1] == rig.pipeline._model.block_bytes
    assert sizes[1] == 2 * sizes[0]  # the model has one layer with attention, and so has the head
    assert stats.accepted > stats.drafted / 3
    for plain, drafted in zip(*found, strict=True):
        assert drafted.failed is plain.failed is None
        assert drafted.tokens == plain.tokens
        assert drafted.reasons == plain.reasons
        for index, logprobs in plain.logprobs.items():
            assert drafted.logprobs[index] == pytest.approx(logprobs, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RECORDED))
def test_draft_tokens_are_those_of_torch(name, tmp_path, monkeypatch):
    """Those behind the model's own hidden states, of prompts that are computed in parts and beside each other, and
    again with what the prefix cache has of them.
    """
    found, run = {}, MtpHead._run

    def recorded(head, chunks, rows, drafting):
        logits = run(head, chunks, rows, drafting)
        for draft, line in zip(drafting, np.array(logits), strict=False):
            if draft.base == len(draft.text.ids):
                likeliest = int(line.argmax())
                logprob = line[likeliest] - np.log(np.exp(line.astype(np.float64)).sum())
                found[draft.text.request.id, draft.base - 2] = likeliest, float(logprob)
        return logits

    rig, known = load(with_head(name, tmp_path)), RECORDED[name]
    monkeypatch.setattr(MtpHead, "_run", recorded)
    numbers = []
    for _ in range(2):
        numbers += [rig.submit(ids[: known["prompt"]], max_tokens=60, ignore_eos=True) for ids in known["texts"]]
        rig.run()
    for number in numbers:
        place = numbers.index(number) % len(known["texts"])
        assert (rig.answer(number).cached > 0) is (number in numbers[len(known["texts"]) :])
        assert rig.answer(number).tokens[0] == known["texts"][place][known["prompt"] :]
        mine = {at: answer for (request, at), answer in found.items() if request == number}
        assert len(mine) > 10
        for at, (token, logprob) in mine.items():
            assert token == known["tokens"][place][at]
            assert logprob == pytest.approx(known["logprobs"][place][at], abs=5e-3)


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
    with pytest.raises(StartError, match="--mtp true excludes"):
        speculative(mtp="true", prompt_lookup=True)
    with pytest.raises(StartError, match="only PAGED"):
        speculative(mtp="true", paged=False)
