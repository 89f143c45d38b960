"""An engine with the disk tier gives the same tokens as one without, whatever is written, read, removed or damaged."""

import random
import threading
from array import array
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from lean_ovms.errors import NotSupported
from lean_ovms.features.disk_cache.child import writer
from lean_ovms.features.disk_cache.child.block_store import BlockStore
from lean_ovms.features.disk_cache.child.keys import BlockKeys
from lean_ovms.features.disk_cache.child.tier import DiskTier
from lean_ovms.features.disk_cache.child.writer import NOTHING
from lean_ovms.features.disk_cache.feature import METRIC
from lean_ovms.features.disk_cache.records import DiskCacheAction
from lean_ovms.features.lora.child.adapters import Adapter, AdapterTable
from tests.engine.paged.harness import Params
from tests.engine.paged.network import FakeNetwork, HybridNetwork
from tests.engine.paged.test_engine import SIZE, alone, disturbed_step, engine, prompt, run

HITS = f"{METRIC}hit_tokens_total"
FINGERPRINT = bytes(32)
BOTH = pytest.mark.parametrize("kind", [FakeNetwork, HybridNetwork])
ASKED = Params(max_tokens=6)
LONG_S = 60.0


MADE = []


@pytest.fixture(autouse=True)
def threads_end():
    """Ends the threads of all engines of a test."""
    yield
    while MADE:
        disk(MADE.pop()).close(LONG_S)


def tiered(path, blocks=200, limit=1 << 24, **options):
    """Returns an engine with a tier on disk."""
    made = engine(blocks, **{"interval": 16, "adapters": AdapterTable(None, (), 3), **options})
    DiskTier(BlockStore(path, FINGERPRINT, limit), made.network, made.blocks, made.states).join(made.hooks)
    MADE.append(made)
    return made


def answer(made, ids, **fields):
    """Checks the answer to a prompt, and returns how many of its tokens were cached."""
    asked = replace(ASKED, **fields)
    request = made.add(ids, asked)
    assert run(made, request) == [alone(ids, asked)]
    return request.cached


def restarted(made, path, **options):
    """Returns another engine that continues with the directory of the first."""
    disk(made).close(LONG_S)
    return tiered(path, **options)


def warm(path, tokens):
    """Returns an engine that finds a prompt of this many tokens on disk."""
    made = tiered(path)
    answer(made, prompt(tokens))
    return restarted(made, path)


def disk(made):
    return made.hooks[0]


def slow_computing(made):
    """Makes computing seem slow instead of measuring it, so that blocks are always read."""
    disk(made)._worth = lambda tokens, size: LONG_S
    return made


@BOTH
def test_a_prompt_is_found_again_after_a_restart(tmp_path, kind):
    made = tiered(tmp_path, kind=kind)
    assert answer(made, prompt(101)) == 0
    made = restarted(made, tmp_path, kind=kind)
    computed = made.network.computed
    assert answer(made, prompt(101)) == 100
    assert made.network.computed - computed == 6
    stats = made.stats()
    assert stats.of_features[HITS] == 100
    assert stats.of_features[f"{METRIC}read_bytes_total"] > 0
    assert stats.of_features[f"{METRIC}bytes"] > 0
    assert answer(made, prompt(101)) == 100  # this time from memory
    assert made.stats().of_features[HITS] == 100


@BOTH
def test_the_next_turn_goes_on_behind_the_answer_after_a_restart(tmp_path, kind):
    made, ids, known = tiered(tmp_path, kind=kind), prompt(41), 0
    for turn in range(4):
        cached = answer(made, ids, max_tokens=10)
        assert cached == (0 if not turn else (known + 9) // SIZE * SIZE)
        known = len(ids)
        ids = ids + alone(ids, Params(max_tokens=10)) + prompt(7, turn)
        made = restarted(made, tmp_path, kind=kind)


@BOTH
def test_blocks_that_leave_memory_come_back_from_disk(tmp_path, kind):
    made = slow_computing(tiered(tmp_path, 60, kind=kind, **({"states": 12} if kind is HybridNetwork else {})))
    ids = [prompt(101, seed) for seed in range(4)]
    for one in ids:
        assert answer(made, one) == 0  # only two of them fit into memory
        disk(made).writer._copies.put(NOTHING)
    settled(made)
    for one in ids:
        assert answer(made, one) == 100
        settled(made)
    assert made.stats().of_features[HITS] >= 300
    assert made.stats().of_features[f"{METRIC}dropped_blocks_total"] == 0


def test_states_that_give_way_to_others_are_on_disk(tmp_path):
    """There is memory for all blocks, but not for the states after them."""
    options = {"kind": HybridNetwork, "states": 3, "interval": 400}
    made = tiered(tmp_path, **options)
    for seed in range(4):
        answer(made, prompt(41, seed))
        settled(made)
    made = slow_computing(restarted(made, tmp_path, **options))
    assert [answer(made, prompt(41, seed)) for seed in range(4)] == [40] * 4


def settled(made):
    """Waits until all blocks that have left memory are written."""
    tier, done = disk(made), threading.Event()
    write = tier.store.refresh
    tier.store.refresh = lambda: (write(), tier.writer._copies.empty() and done.set())
    tier.writer._copies.put(NOTHING)
    assert done.wait(LONG_S)
    tier.store.refresh = write


def test_whatever_happens_in_a_read_the_next_is_served(tmp_path, monkeypatch, caplog):
    made = slow_computing(warm(tmp_path, 101))
    read = disk(made).store.read

    def broken(*_):
        monkeypatch.setattr(disk(made).store, "read", read)
        raise OverflowError("int too big to convert")

    monkeypatch.setattr(disk(made).store, "read", broken)
    assert answer(made, prompt(50)) == 0
    assert answer(made, prompt(101), cache_salt="") in (96, 100)
    assert made.stats().of_features[HITS]
    assert "int too big" in caplog.text


def test_what_is_in_memory_is_not_read_and_what_is_behind_it_is(tmp_path):
    made = warm(tmp_path, 101)
    assert answer(made, prompt(101)[:50]) == 48
    assert made.stats().of_features[HITS] == 48
    assert answer(made, prompt(101)) == 100
    assert made.stats().of_features[HITS] == 100


def test_salts_and_adapters_are_kept_apart(tmp_path):
    weights = {"layer": (np.ones((2, 4), np.float32), np.ones((4, 2), np.float32))}
    kinds = [
        {},
        {"cache_salt": "a"},
        {"cache_salt": "b"},
        {"adapter": Adapter("one", 1.0, weights)},
        {"adapter": Adapter("other", 2.0, weights)},
        {"adapter": Adapter("one", 1.0, weights), "cache_salt": "a"},
    ]
    for kind in kinds:
        made = tiered(tmp_path)
        assert answer(made, prompt(41), **kind) == 0
        disk(made).close(LONG_S)
    made = tiered(tmp_path)
    assert [answer(made, prompt(41), **kind) for kind in kinds] == [40] * len(kinds)


def test_an_adapter_is_known_by_its_weights_not_by_its_name(tmp_path):
    weights = {"layer": (np.ones((2, 4), np.float32), np.ones((4, 2), np.float32))}
    changed = {"layer": (2 * weights["layer"][0], weights["layer"][1])}
    made = tiered(tmp_path)
    answer(made, prompt(41), adapter=Adapter("one", 1.0, weights))
    made = restarted(made, tmp_path)
    assert answer(made, prompt(41), adapter=Adapter("one", 1.0, changed)) == 0
    assert answer(made, prompt(41), adapter=Adapter("new name", 1.0, weights)) == 40


def test_blocks_of_images_stay_in_memory():
    """Image tokens are numbers that another process gives to other images."""
    keys, text, image = BlockKeys(), array("q", [1, 2]).tobytes(), array("q", [3, -1]).tobytes()
    keys.add(1, "", text)
    keys.add(2, 1, image)
    keys.add(3, 2, text)
    assert [keys.get(serial) is not None for serial in (1, 2, 3)] == [True, False, False]


def test_log_probabilities_of_the_prompt_are_computed(tmp_path):
    made = warm(tmp_path, 41)
    assert answer(made, prompt(41), prompt_logprobs=True, prompt_top_logprobs=1) == 0
    assert made.stats().of_features[f"{METRIC}read_bytes_total"] == 0


def test_prompts_that_begin_alike_wait_for_one_reading(tmp_path):
    made = warm(tmp_path, 81)
    requests = [made.add(prompt(81), ASKED) for _ in range(3)]
    assert run(made, *requests) == [alone(prompt(81), ASKED)] * 3
    assert [request.cached for request in requests] == [80] * 3
    assert made.stats().of_features[HITS] == 80


class Gate:
    """A store whose blocks are read only when the gate is open."""

    def __init__(self, made):
        self._read, self.open = disk(made).store.read, threading.Event()
        disk(made).store.read = self

    def __call__(self, key, buffers):
        assert self.open.wait(LONG_S)
        return self._read(key, buffers)


def test_prompts_that_wait_for_the_reading_of_another_are_not_hashed_before_each_step(tmp_path, monkeypatch):
    made, looked_up = slow_computing(warm(tmp_path, 81)), []
    known = DiskTier._known
    monkeypatch.setattr(DiskTier, "_known", lambda *given: looked_up.append(1) or known(*given))
    gate = Gate(made)
    requests = [made.add(prompt(81), ASKED) for _ in range(5)]
    for _ in range(20):
        made.admit()
    assert len(looked_up) == 5
    gate.open.set()
    assert run(made, *requests) == [alone(prompt(81), ASKED)] * 5


def test_others_go_on_while_a_prompt_waits_for_its_blocks(tmp_path):
    made = slow_computing(warm(tmp_path, 101))
    gate = Gate(made)
    slow, other = made.add(prompt(101), ASKED), made.add(prompt(50, 7), ASKED)
    while other.status == "running":
        made.step()
    assert slow.status == "running"
    assert slow.cached == -1
    gate.open.set()
    assert run(made, slow) == [alone(prompt(101), ASKED)]
    assert slow.cached == 100


def test_a_disk_that_is_too_slow_is_not_waited_for(tmp_path):
    made = warm(tmp_path, 101)
    gate = Gate(made)
    disk(made)._worth = lambda tokens, size: 1e-3
    request = made.add(prompt(101), ASKED)
    while request.status == "running":
        made.step()
    assert request.cached == 0
    gate.open.set()
    run(made)


def test_blocks_for_reading_are_given_up_when_a_running_text_needs_them(tmp_path):
    made = tiered(tmp_path, 60)
    answer(made, prompt(201))
    made = slow_computing(restarted(made, tmp_path, blocks=60))
    gate = Gate(made)
    slow = made.add(prompt(201), ASKED)
    made.step()
    assert disk(made).reading
    other = made.add(prompt(60, 7), replace(ASKED, max_tokens=20))
    threading.Timer(0.1, gate.open.set).start()
    assert run(made, slow, other) == [alone(prompt(201), ASKED), alone(prompt(60, 7), replace(ASKED, max_tokens=20))]


@pytest.mark.slow
@pytest.mark.parametrize("others", [Params(max_tokens=6), Params(max_tokens=8, beams=4)], ids=["texts", "beams"])
def test_states_that_are_read_take_no_slot_from_running_texts(tmp_path, others):
    """There are slots for four sequences, and as many prompts are read as there are slots."""
    options = {"kind": HybridNetwork, "states": 6, "interval": 400}
    made = tiered(tmp_path, **options)
    for seed in range(6):
        answer(made, prompt(41, seed))
        settled(made)
    made = slow_computing(restarted(made, tmp_path, **options))
    gate = Gate(made)
    reads = [made.add(prompt(41, seed), ASKED) for seed in range(6)]
    made.step()
    assert len(disk(made)._reading) == 6
    computed = [made.add(prompt(20, 10 + number), others) for number in range(4)]
    while any(request.status == "running" for request in computed):
        made.step()
    gate.open.set()
    assert run(made, *reads) == [alone(prompt(41, seed), ASKED) for seed in range(6)]
    assert {request.status for request in computed} == {"finished"}
    assert made.stats().recoveries == 0


def test_a_request_that_is_cancelled_while_its_blocks_are_read_leaves_nothing_behind(tmp_path):
    made = warm(tmp_path, 101)
    gate = Gate(made)
    request = made.add(prompt(101), ASKED)
    made.step()
    request.cancel()
    gate.open.set()
    run(made)
    assert answer(made, prompt(101)) in (0, 100)


def test_reading_is_compared_with_computing(tmp_path):
    made = warm(tmp_path, 101)
    tier = disk(made)
    assert tier._worth(100, 100) > 0  # nothing has been measured yet
    tier._computing.add(1000, 1.0)
    tier.reader.speed.add(1000, 1.0)
    assert tier._worth(100, 99) > 0
    assert tier._worth(100, 300) == 0
    assert sum(not tier._worth(100, 300) for _ in range(100)) < 50  # it is tried again now and then
    tier.reader.speed.add(1e6, 1e9)
    assert answer(made, prompt(101)) == 0


def test_damaged_files_are_computed_instead(tmp_path, caplog):
    made = tiered(tmp_path)
    answer(made, prompt(101))
    disk(made).close(LONG_S)
    for one in tmp_path.glob("*/*.data"):
        data = bytearray(one.read_bytes())
        data[10 * 32 : 10 * 32 + 5] = b"wrong"  # in the middle of the chain
        one.write_bytes(data)
    made = tiered(tmp_path)
    assert 0 < answer(made, prompt(101)) < 100
    assert made.stats().of_features[f"{METRIC}errors_total"] == 1
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


@BOTH
def test_blocks_for_whose_copies_there_is_no_memory_are_only_not_written(tmp_path, kind, monkeypatch):
    made = tiered(tmp_path, 40, kind=kind)

    def without_memory(buffers):
        raise MemoryError

    monkeypatch.setattr(writer, "np", SimpleNamespace(concatenate=without_memory))
    for seed in range(6):
        answer(made, prompt(41, seed))
    monkeypatch.undo()
    assert made.stats().of_features[f"{METRIC}dropped_blocks_total"] > 0
    assert made.stats().recoveries == 0


def test_a_directory_that_is_removed_under_a_running_engine_stops_nothing(tmp_path):
    made = tiered(tmp_path, 60)
    for seed in range(8):
        answer(made, prompt(101, seed))
        for one in [*tmp_path.glob("*/*"), *tmp_path.glob("*")]:
            one.rmdir() if one.is_dir() else one.unlink()
    disk(made).close(LONG_S)


@BOTH
@pytest.mark.parametrize("seed", range(3))
def test_random_arrivals_evictions_and_restarts_give_the_same_tokens(tmp_path, kind, seed):
    """Conversations continue over several restarts, while steps fail and requests are cancelled."""
    dice = random.Random(seed)
    texts_of = [prompt(dice.randrange(20, 60), n % 2) + prompt(dice.randrange(1, 60), n) for n in range(6)]
    options = {"kind": kind, "blocks": dice.choice([60, 90, 200]), "limit": dice.choice([1 << 17, 1 << 22])}
    if kind is HybridNetwork:
        options["states"] = dice.choice([12, 40])
    hits = 0
    for _ in range(4):
        made = tiered(tmp_path, **options)
        if dice.random() < 0.7:
            slow_computing(made)
        live, texts, wanted = [], {}, {}
        for number in range(25):
            ids = dice.choice(texts_of)
            sampled = {"num_assistant_tokens": dice.choice([0, 0, 3]), "temperature": dice.choice([0.0, 1.0])}
            asked = Params(
                max_tokens=dice.randrange(1, 14), seed=number, cache_salt=dice.choice(["", "", "s"]), **sampled
            )
            wanted[number], texts[number] = (ids, asked), []
            live.append((number, made.add(ids, asked)))
            for _ in range(dice.randrange(8)):
                disturbed_step(made, dice, live, texts, wanted)
        for _ in range(5000):
            if not made.busy():
                break
            disturbed_step(made, dice, live, texts, wanted)
        assert not made.busy()
        assert {number: texts[number] for number in wanted} == {
            number: alone(ids, asked) for number, (ids, asked) in wanted.items()
        }
        assert made.blocks.available == made.blocks.total
        assert made.states.available == made.states.total
        hits += made.stats().of_features[HITS]
        if dice.random() < 0.8:
            disk(made).close(LONG_S)
        for one in tmp_path.glob("*/*.data"):
            if dice.random() < 0.1:
                one.write_bytes(one.read_bytes()[: -dice.randrange(1, 1000)])
    assert hits > 0 or options["limit"] == 1 << 17


def test_a_reset_forgets_memory_and_if_asked_disk(tmp_path):
    made = tiered(tmp_path)
    answer(made, prompt(101))
    settled(made)
    made.reset_prefix_cache(disk=False)
    assert answer(made, prompt(101)) == 0  # blocks that were only in memory are not written
    made = restarted(made, tmp_path)
    assert answer(made, prompt(101)) == 100
    made.reset_prefix_cache(disk=False)
    assert answer(made, prompt(101)) == 100
    made.reset_prefix_cache(disk=True)
    assert answer(made, prompt(101)) == 0
    assert answer(made, prompt(101)) == 100


def test_a_reset_while_texts_run_changes_no_token(tmp_path):
    made = tiered(tmp_path)
    ids = [prompt(61, seed) for seed in range(3)]
    requests = [made.add(one, replace(ASKED, max_tokens=30)) for one in ids]
    for number in range(8):
        made.step()
        made.reset_prefix_cache(disk=number % 2 == 0)
    assert run(made, *requests) == [alone(one, replace(ASKED, max_tokens=30)) for one in ids]


def on_disk(made, action):
    """Returns the tier's answer to a call, while other requests continue."""
    made.handle(DiskCacheAction(7, action))
    while not made.on_disk:
        made.step()
    return made.on_disk.pop()


@BOTH
def test_what_is_in_memory_is_saved_on_request(tmp_path, kind):
    made = tiered(tmp_path, kind=kind)
    disk(made).writer.busy = True  # an engine that is busy does not write for lack of other work
    disk(made).writer.rest = lambda: None
    answer(made, prompt(101))
    saved = on_disk(made, "save")
    found = made.stats()
    assert (saved.id, saved.bytes, saved.failed) == (7, found.of_features[f"{METRIC}written_bytes_total"], 0)
    assert saved.blocks >= 25
    assert on_disk(made, "save") == replace(saved, blocks=0, bytes=0)
    assert on_disk(made, "restore") == replace(saved, bytes=found.of_features[f"{METRIC}bytes"])
    other = slow_computing(tiered(tmp_path, kind=kind))  # the first has not been closed
    assert answer(other, prompt(101)) == 100


def test_requests_are_answered_while_blocks_are_saved(tmp_path):
    made, expected = tiered(tmp_path, 60), set(range(8))
    for number in expected:
        request = made.add(prompt(61, number), ASKED)
        made.step()
        made.handle(DiskCacheAction(number, ("save", "restore")[number % 2]))
        assert run(made, request) == [alone(prompt(61, number), ASKED)]
    assert {one.id for one in made.on_disk} == expected
    assert made.idle


def test_a_block_that_cannot_be_saved_is_counted(tmp_path):
    made = tiered(tmp_path)
    disk(made).store.write = lambda key, buffers: False
    answer(made, prompt(101))
    saved = on_disk(made, "save")
    assert (saved.blocks, saved.failed >= 25) == (0, True)
    disk(made).writer._write_memory = None  # makes the thread fail
    saved = on_disk(made, "save")
    assert (saved.blocks, saved.failed) == (0, 1)
    del disk(made).writer._write_memory


def test_a_prompt_that_another_process_has_saved_is_found_on_request(tmp_path):
    first, second = tiered(tmp_path), slow_computing(tiered(tmp_path))
    answer(first, prompt(101))
    saved = on_disk(first, "save")
    assert on_disk(second, "restore").blocks == saved.blocks
    assert answer(second, prompt(101)) == 100


def test_without_a_tier_there_is_nothing_to_save():
    with pytest.raises(NotSupported, match="--prefix_cache_path"):
        engine(200).handle(DiskCacheAction(1, "save"))


def test_two_engines_on_one_directory(tmp_path):
    first, second = tiered(tmp_path), tiered(tmp_path)
    for seed in range(20):
        answer((first, second)[seed % 2], prompt(41, seed))
    for made in (first, second):
        disk(made).close(LONG_S)
    third = slow_computing(tiered(tmp_path))
    assert [answer(third, prompt(41, seed)) for seed in range(20)] == [40] * 20
