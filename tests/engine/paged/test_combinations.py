"""Requests with any two fields, in engines with any two options: answers are those of the same request alone in an
engine without options, and nothing is left behind.

The requests share beginnings, arrive while others run, and some are cancelled or preempted.
"""

import itertools
import json
import random
from dataclasses import asdict

import pytest

from lean_ovms.engine.paged import step_runner
from lean_ovms.engine.protocol import ResetPrefixCache, Submit
from lean_ovms.features.drafting.child.draft_source import BudgetedDrafts
from lean_ovms.features.slots.records import SlotAction
from lean_ovms.types import SamplingParams
from tests.engine.paged.test_zoo import VOCAB, Oracle, unpacked
from tests.engine.real import EXACT, assert_empty, load
from tests.engine.rig import Rig

pytestmark = [pytest.mark.model, pytest.mark.slow]

STOPS = {"stop_token_ids": (30, 31, 32, 33)}
REQUESTS = {
    "shared": [0, 32, 33, 96, 130],
    "own": [1, 2, 45],
    "sampling": [{}, {"temperature": 0.8}, {"temperature": 1.2, "top_k": 9, "min_p": 0.05}],
    "choices": [{}, {}, {"n": 3}, {"beams": 3, "n": 2, "temperature": 0.0, "repetition": None}],
    "logprobs": [{}, {"logprobs": True, "top_logprobs": 2}, {"logprobs": True, "logprob_token_ids": (5, 17)}],
    "prompt": [{}, {"prompt_logprobs": True, "prompt_top_logprobs": 1}],
    "penalties": [{}, {"repetition_penalty": 1.3}, {"presence_penalty": 0.7, "frequency_penalty": -0.5}],
    "tokens": [{}, {"logit_bias": ((20, 3.0), (21, -5.0))}, {"allowed_token_ids": tuple(range(11, 50))}],
    "end": [{"ignore_eos": True}, STOPS, {**STOPS, "min_tokens": 9}, {"repetition": (1, 4, 3)}],
    "words": [{}, {"bad_words": ("A", "BC")}],
    "drafts": [{}, {"num_assistant_tokens": 4}],
    "cache": [{}, {"cache_salt": "s"}, {"id_slot": 1, "report_progress": True}],
    "length": [{"max_tokens": 10}, {"max_tokens": 28}],
}
OPTIONS = {
    "enable_prefix_caching": [False, True, True],
    "blocks": [400, 26],
    "max_num_batched_tokens": [48, 256],
    "dynamic_split_fuse": [True, False],
    "cache_interval_multiplier": [0, 1],
    "max_num_seqs": [256, 3],
    "drafts": [False, True],
    "kept": [False, True],
    "overlapping": [False, True],
    "meanwhile": [False, True],
}
ERROR = 1e-3
"""The greatest difference of log probabilities; in f32 it was 5e-5 (2026-11)."""


def pairwise(factors, dice):
    """Yields combinations of the factors' values that together have every pair of them.

    Each begins with a missing pair, and takes those other values that have the most missing pairs with it.
    """
    pairs = {
        frozenset({(one, i), (other, j)})
        for one, other in itertools.combinations(factors, 2)
        for i in range(len(factors[one]))
        for j in range(len(factors[other]))
    }
    while pairs:
        row = dict(min(pairs, key=sorted))
        for name in dice.sample(sorted(factors), len(factors)):
            if name not in row:
                found = [{frozenset({(name, i), item}) for item in row.items()} for i in range(len(factors[name]))]
                row[name] = max(range(len(found)), key=lambda i: len(found[i] & pairs))
        pairs.difference_update(map(frozenset, itertools.combinations(row.items(), 2)))
        yield {name: factors[name][row[name]] for name in factors}


def requests(dice):
    """Returns prompts with their sampling parameters."""
    base = [dice.randrange(11, VOCAB) for _ in range(130)]
    base[70:110] = base[:40]  # so that n-grams are found
    for row in pairwise(REQUESTS, dice):
        ids = base[: row.pop("shared")] + [dice.randrange(11, VOCAB) for _ in range(row.pop("own"))]
        fields = {"temperature": 0.0}
        for name in ("sampling", "end", "choices", *row):
            fields |= row[name]
        yield ids, {**fields, "seeds": tuple(dice.randrange(99) for _ in range(fields.get("n", 1)))}


def submit(rig, ids, fields, **more):
    """Puts a Submit into the inbox. Returns its id."""
    number = rig.next_id()
    rig.put(Submit(number, ids, False, None, False, asdict(SamplingParams(**fields)), **more))
    return number


def engine(path, **options):
    """Returns the engine with a model, which computes in f32, and has no option but the given ones."""
    plugin_config = json.dumps({**json.loads(EXACT["plugin_config"]), "INFERENCE_PRECISION_HINT": "f32"})
    fixed = {"pipeline_type": "PAGED", "ngram_speculation": False, "plugin_config": plugin_config}
    return load(compiled_twice=False, shared=True, model_path=path, **fixed, **options)


def combined(path, slots, known, options):
    """Returns the engine with a combination of OPTIONS.

    Args:
        path: The directory of the model.
        slots: The directory in which slots are saved.
        known: Texts whose tokens are proposed as draft tokens, some of them wrong.
        options: The combination.
    """
    options = dict(options)
    drafts, kept, overlapping = (options.pop(each) for each in ("drafts", "kept", "overlapping"))
    if kept and options["enable_prefix_caching"]:
        options |= {"slot_save_path": str(slots)}
    pipe = engine(path, prompt_lookup=drafts, **options)
    if drafts:
        pipe.scheduler.speculation.source = BudgetedDrafts(Oracle(known))
    pipe._overlapping = overlapping
    return pipe


def play(rig, asked, dice, *, slots):
    """Sends half of the requests while others run. Returns their ids with their places in the list, and the cancelled
    ones."""
    sent, cancelled = {}, set()
    for place, (ids, fields) in dice.sample(list(enumerate(asked)), len(asked) // 2):
        more = {"client": dice.choice("ab"), "group": dice.randrange(2), "priority": dice.choice([0, 0, 1])}
        sent[submit(rig, ids, fields, **more)] = place
        if dice.random() < 0.1:
            cancelled.add(gone := dice.choice(list(sent)))
            rig.cancel(gone)
        if slots and dice.random() < 0.3:
            rig.put(SlotAction(rig.next_id(), dice.choice(["save", "restore"]), dice.randrange(2), "a.bin"))
        if dice.random() < 0.03:
            rig.put(ResetPrefixCache(rig.next_id()))
        for _ in range(dice.choice([0, 1, 4, 9])):
            if rig.transport.inbox or not rig.task.idle:
                rig.turn()
        running = rig.scheduler.running
        if running and rig.backend.runner.running is None and dice.random() < 0.3:
            rig.scheduler.preempt(dice.choice(running))
    rig.run()
    return sent, cancelled


def assert_same(found, wanted, *, whole):
    """Compares an answer with that of the request alone, or the beginning of it that a cancelled request has got."""
    assert found.failed is found.refused is None
    if whole:
        assert (found.tokens, found.reasons) == (wanted.tokens, wanted.reasons)
        assert (found.prompt_logprobs is None) is (wanted.prompt_logprobs is None)
    if found.prompt_logprobs is not None:
        assert found.prompt_logprobs[1:] == pytest.approx(wanted.prompt_logprobs[1:], abs=ERROR)
    for index, tokens in found.tokens.items():
        count = len(tokens)
        assert tokens == wanted.tokens[index][:count]
        assert found.logprobs[index] == pytest.approx(wanted.logprobs[index][:count], abs=ERROR)
        assert not wanted.top.get(index) or len(found.top[index]) == count
        for mine, alone in zip(found.top.get(index, []), wanted.top.get(index, []), strict=False):
            assert [value for _, value in mine] == pytest.approx([value for _, value in alone], abs=ERROR)


def written(name, directory):
    """Returns the path of a GGUF file of the zoo."""
    pytest.importorskip("gguf")
    from tests.makers import zoo_gguf

    return str(zoo_gguf.write(directory.with_suffix(".gguf"), name))


@pytest.mark.parametrize(
    ("name", "model"),
    [("llama", unpacked), ("lfm2", unpacked), ("qwen3_next", unpacked), ("gemma4_text", written)],
    ids=["plain", "convolutions", "linear attention", "windows and shared caches"],
)
def test_any_two_features_together_change_no_answer(name, model, tmp_path, monkeypatch):
    monkeypatch.setattr(step_runner, "SHORT_S", -1)  # each step is long
    dice = random.Random(name)
    asked = list(requests(dice))
    path = model(name, tmp_path / name)
    plain = engine(path)
    wanted = []
    for ids, fields in asked:
        rig = Rig(pipeline=plain)
        number = submit(rig, ids, {**fields, "num_assistant_tokens": 0})
        wanted.append(rig.run().answer(number))
    known = [ids + tokens for (ids, _), one in zip(asked, wanted, strict=True) for tokens in one.tokens.values()]
    stats = []
    for at, options in enumerate(pairwise(OPTIONS, dice)):
        meanwhile = options.pop("meanwhile")
        pipe = combined(path, tmp_path / f"slots{at}", known, options)
        rig = Rig(pipeline=pipe, meanwhile=meanwhile)
        sent, cancelled = play(rig, asked, dice, slots=len(pipe.hooks) > 0)
        for number, place in sent.items():
            answer, ids = rig.answer(number), asked[place][0]
            assert_same(answer, wanted[place], whole=number not in cancelled)
            assert (answer.cached or 0) < len(ids)
            assert options["enable_prefix_caching"] or not answer.cached
        pipe.close()
        assert_empty(rig)
        assert pipe.blocks.available == pipe.blocks.total
        assert pipe.states.available == pipe.states.total
        assert not pipe.requests
        assert not pipe.waiting.clients
        stats.append((pipe.stats().preemptions, pipe.stats().accepted, max(rig.answer(n).cached or 0 for n in sent)))
    assert all(map(max, zip(*stats, strict=True)))  # sequences were preempted, draft tokens accepted, prompts cached
