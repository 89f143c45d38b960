"""States of hybrid networks and their checkpoints: the policy without a network, then the engine with a scripted
one."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from lean_ovms.engine.paged.sequence import NO_STATE
from lean_ovms.engine.paged.state_checkpoints import StateCache
from lean_ovms.features.lora.child.adapters import Adapter, AdapterTable
from tests.engine.paged.harness import Params, leave_out_at_random
from tests.engine.paged.network import VOCAB, FakeNetwork, HybridNetwork
from tests.engine.paged.test_engine import KINDS, SIZE, Verse, alone, disturbed_step, engine, prompt, run
from tests.features.drafting.test_draft_model import draft


def checkpoint(cache, chain, kind="prompt"):
    """Makes a checkpoint that no sequence uses."""
    slot = cache.allocate()
    cache.add(chain, slot, kind)
    cache.release(slot)
    return slot


def go_on(cache, chain):
    """Runs a prompt that continues from a checkpoint and ends at once."""
    cache.release(cache.restore(chain, counts=True))


def kept(cache):
    return [serial for serial in range(100) if cache.matched([serial])]


def test_a_slot_that_others_use_is_not_written():
    cache = StateCache(3)
    slot = cache.allocate()
    assert cache.writable(slot) == slot
    cache.share(slot)
    other = cache.writable(slot)
    assert other not in (slot, NO_STATE)
    cache.release(slot)
    assert cache.writable(slot) == slot
    cache.add([1], slot, "prompt")
    assert cache.writable(slot) not in (slot, other, NO_STATE)


def test_a_checkpoint_that_a_sequence_is_at_gives_way_when_there_is_no_other_slot():
    cache = StateCache(1)
    slot = cache.allocate()
    cache.add([1], slot, "prompt")
    assert (cache.writable(slot), len(cache._checkpoints)) == (slot, 0)
    cache.share(slot)
    assert cache.writable(slot) == NO_STATE


def test_what_can_be_used_of_a_chain_ends_with_a_checkpoint():
    cache = StateCache(4)
    checkpoint(cache, [1, 2])
    checkpoint(cache, [1, 2, 3, 4])
    assert [cache.matched(chain) for chain in ([1], [1, 2, 3], [1, 2, 3, 4, 5], [])] == [0, 2, 4, 0]
    assert StateCache(0).matched([1, 2, 3]) == 3  # a network without states needs none


def test_the_checkpoint_that_was_used_longest_ago_is_replaced_first():
    cache = StateCache(3)
    for serial in (1, 2, 3):
        checkpoint(cache, [serial])
    go_on(cache, [1])
    checkpoint(cache, [4])
    assert kept(cache) == [1, 3, 4]


def test_those_in_the_middle_of_a_prompt_are_replaced_before_all_others():
    cache = StateCache(3)
    checkpoint(cache, [1])
    checkpoint(cache, [2, 3], "inner")
    checkpoint(cache, [2, 3, 4], "inner")
    checkpoint(cache, [2, 3, 4, 5], "prompt")
    assert kept(cache) == [1, 3, 5]


def test_the_turns_of_one_conversation_do_not_replace_another():
    cache = StateCache(3)
    checkpoint(cache, [1])
    for turn in range(2, 20):
        if turn > 2:
            go_on(cache, list(range(2, turn)))
        checkpoint(cache, list(range(2, turn + 1)))
    assert kept(cache) == [1, 18, 19]


def test_a_beginning_that_several_share_stays_longer_than_what_is_behind_it():
    cache = StateCache(4)
    checkpoint(cache, [1], "shared")
    for end in range(2, 12):
        go_on(cache, [1])
        checkpoint(cache, [1, end])
    assert kept(cache) == [1, 9, 10, 11]
    checkpoint(cache, [20])
    for _ in range(5):
        go_on(cache, [1, 11])  # its prefix counts as used too
        checkpoint(cache, [30])
        checkpoint(cache, [31])
        cache.remove(30)
        cache.remove(31)
    assert {1, 11} <= {*kept(cache)}


# --- in the engine


def hybrid(blocks=200, **options):
    return engine(blocks, **{"kind": HybridNetwork, "interval": 16, **options})


def asked_of(made, ids, **fields):
    """Returns the only answer to a request that runs alone, and how much of its prompt was cached."""
    wanted = Params(**{"max_tokens": 6, **fields})
    request = made.add(ids, wanted)
    assert run(made, request) == [alone(ids, wanted)]
    return alone(ids, wanted), request.cached


def test_the_next_turn_of_a_conversation_goes_on_behind_the_answers_last_block():
    made, ids, length = hybrid(), prompt(41), 0
    for turn in range(5):
        answer, cached = asked_of(made, ids, max_tokens=10)
        assert cached == (0 if not turn else (length + 9) // SIZE * SIZE)  # the last token was not computed
        length = len(ids)
        ids = ids + answer + prompt(7, turn)


def test_a_turn_whose_answer_is_rendered_otherwise_goes_on_behind_the_prompts_last_block():
    made, ids = hybrid(), prompt(41)
    asked_of(made, ids, max_tokens=10)
    assert asked_of(made, ids + prompt(20, 1))[1] == 40
    assert asked_of(made, ids)[1] == 40


def test_the_third_prompt_with_a_beginning_goes_on_behind_it():
    """The second prompt computes the common prefix, and leaves a checkpoint at its end."""
    made, system = hybrid(interval=400), prompt(90)
    assert [asked_of(made, system + prompt(9, number))[1] for number in range(1, 5)] == [0, 0, 88, 88]


@pytest.mark.parametrize("before", [[], [3]])
def test_the_second_chat_with_a_system_message_goes_on_behind_it(before):
    made, start = hybrid(interval=400), VOCAB - 1
    made.scheduler.checkpoints.message_starts = frozenset({start})
    system = [*before, start, *(token % start for token in prompt(90)), start]
    assert [asked_of(made, system + prompt(9, number))[1] for number in (1, 2)] == [0, (len(system) - 1) // SIZE * SIZE]


def test_the_second_chat_with_other_last_message_goes_on_behind_those_before():
    made, start = hybrid(interval=400), VOCAB - 1
    made.scheduler.checkpoints.message_starts = frozenset({start})

    def message(length, seed):
        return [start, *(token % start for token in prompt(length, seed))]

    known = message(30, 1) + message(20, 2) + message(25, 3)
    chats = [known + message(15, number) + message(2, 0) for number in (4, 5)]
    assert [asked_of(made, ids)[1] for ids in chats] == [0, len(known) // SIZE * SIZE]
    assert asked_of(made, message(30, 1) + message(9, 6))[1] == 31 // SIZE * SIZE


@pytest.mark.parametrize("agents", [2, 8])
def test_prompts_with_one_beginning_that_come_together_compute_it_once(agents):
    made, system = hybrid(interval=400), prompt(90)
    prompts = [system + prompt(9, number) for number in range(agents)]
    requests = [made.add(ids, Params(max_tokens=2)) for ids in prompts]
    assert run(made, *requests) == [alone(ids, Params(max_tokens=2)) for ids in prompts]
    assert [request.cached for request in requests] == [0] + [88] * (agents - 1)
    assert made.network.computed == 99 + (agents - 1) * 11 + agents
    assert len(made.states._checkpoints) <= 3 + 2 * agents


def test_a_prompt_that_waits_for_a_place_wants_one_state_of_what_is_computed_meanwhile():
    made, system = hybrid(interval=400, step_tokens=8, max_running=1), prompt(90)
    first, second = (made.add(system + prompt(9, number), Params(max_tokens=2)) for number in (1, 2))
    first.sequences[0].shared_ends.clear()
    for _ in range(8):
        made.step()
        made.scheduler.prefixes.match_prefix(second.sequences[0], 0)
    assert (second.sequences[0].cached_end, second.sequences[0].shared_ends) == (64, set())
    first.cancel()
    run(made, second)
    assert len(made.states._checkpoints) <= 4


def test_a_prompt_that_leaves_another_in_the_middle_goes_on_from_the_checkpoint_before():
    made, long = hybrid(interval=16), prompt(100)
    asked_of(made, long)
    assert asked_of(made, long[:70] + prompt(9, 1))[1] == 64
    made = hybrid(interval=16, states=4)  # there is no memory for states in the middle
    asked_of(made, long)
    assert asked_of(made, long[:40] + prompt(9, 1))[1] == 0


def test_other_salts_and_requests_without_the_cache_find_no_states():
    made, ids = hybrid(), prompt(40)
    asked_of(made, ids, cache_salt="a")
    assert [asked_of(made, ids, cache_salt=salt)[1] for salt in ("b", "", "a")] == [0, 0, 36]
    made = hybrid(caching=False)
    assert [asked_of(made, ids)[1] for _ in range(3)] == [0, 0, 0]
    assert not made.states._checkpoints


def test_log_probabilities_of_a_prompt_are_complete_and_leave_a_state():
    made, ids = hybrid(), prompt(40)
    for _ in range(2):
        request = made.add(ids, Params(max_tokens=1, prompt_logprobs=True))
        run(made, request)
        assert (request.cached, len(request.prompt_details)) == (0, 39)
    assert asked_of(made, ids)[1] == 36


@pytest.mark.parametrize("kind", [FakeNetwork, HybridNetwork])
@pytest.mark.parametrize("decoded", [0, 3, 4, 5, 6, 30])
def test_a_preempted_sequence_goes_on_from_its_newest_checkpoint(decoded, kind):
    made, ids, wanted = hybrid(kind=kind, step_tokens=16), prompt(60), Params(max_tokens=40)
    request = made.add(ids, wanted)
    [sequence] = request.sequences
    for _ in range(2 if not decoded else decoded + 4):
        made.step()
    assert sequence.state == ("decode" if decoded else "prefill")
    computed = int(made.scheduler.tables.computed[sequence.row])
    made.scheduler.preempt(sequence)
    made.admit()
    assert int(made.scheduler.tables.computed[sequence.row]) == computed // SIZE * SIZE
    assert run(made, request) == [alone(ids, wanted)]
    assert request.cached == 0


def test_a_preempted_sequence_leaves_no_state_inside_a_block():
    """Its last whole block has no checkpoint, as after it was replaced: the sequence computes more of its tokens
    again."""
    made, ids, wanted = hybrid(step_tokens=16, interval=400), prompt(60), Params(max_tokens=40)
    request = made.add(ids, wanted)
    [sequence] = request.sequences
    while sequence.state != "decode" or made.scheduler.tables.computed[sequence.row] % SIZE == 0:
        made.step()
    made.states.remove(sequence.chain[-1])
    before = len(made.states._checkpoints)
    made.scheduler.preempt(sequence)
    assert len(made.states._checkpoints) == before
    assert run(made, request) == [alone(ids, wanted)]


@pytest.mark.parametrize("kind", [FakeNetwork, HybridNetwork])
@pytest.mark.parametrize("step_tokens", [8, 128])
def test_a_prompt_that_comes_second_takes_over_what_the_first_computes(kind, step_tokens):
    """It starts after the first one or together with it. Its length is that of whole blocks, and it computes the last
    one itself."""
    made, ids = hybrid(kind=kind, interval=400, step_tokens=step_tokens), prompt(60)
    requests = [made.add(one, Params(max_tokens=4)) for one in (ids, ids[:40])]
    assert run(made, *requests) == [alone(one, Params(max_tokens=4)) for one in (ids, ids[:40])]
    assert [request.cached for request in requests] == [0, 36]


def test_prompts_with_other_salts_do_not_wait_for_each_other():
    made = engine(step_tokens=128)
    requests = [made.add(prompt(40), Params(cache_salt=salt)) for salt in "aab"]
    made.step()
    assert [int(made.scheduler.tables.computed[one.sequences[0].row]) for one in requests] == [40, 0, 40]


def test_prompts_with_other_salts_have_no_shared_beginning():
    made = hybrid()
    first, _ = (made.add(prompt(60), Params(cache_salt=salt)) for salt in "ab")
    made.step()
    assert first.sequences[0].shared_ends == set()


def test_an_answer_keeps_one_checkpoint_however_long_it_is():
    made = hybrid(interval=400)
    asked_of(made, prompt(41), max_tokens=40)
    assert len(made.states._checkpoints) == 2


def test_slots_of_states_that_a_chunk_cannot_write_are_free_again():
    made, ids = hybrid(states=2, step_tokens=64), prompt(60)
    asked_of(made, ids)
    assert sorted({*made.states._free, *(one.slot for one in made.states._checkpoints.values())}) == [0, 1]


def test_a_block_that_leaves_the_cache_takes_its_checkpoint_along():
    made, ids = hybrid(blocks=30), prompt(60)
    asked_of(made, ids)
    asked_of(made, prompt(100, 1))
    assert asked_of(made, ids)[1] == 0
    made.blocks.clear_cache()
    assert not made.states._checkpoints
    assert sorted(made.states._free) == list(range(made.states.total))


@pytest.mark.slow
def test_there_are_no_more_draft_tokens_than_slots_for_their_states():
    ids, wanted = prompt(8) * 8, Params(max_tokens=40, num_assistant_tokens=4)
    for states in (1, 2, 3, 4, 8):
        made = hybrid(states=states)
        assert run(made, *(made.add(ids, wanted) for _ in range(3))) == [alone(ids, wanted)] * 3


@pytest.mark.parametrize("wrong", [0, 1])
def test_what_a_grammar_leaves_no_choice_about_saves_steps_and_changes_nothing(wrong):
    answers, steps = [], []
    for guesses in (True, False):
        made, matcher = hybrid(), Verse(50, guesses=guesses, wrong=wrong)
        answers.append(run(made, made.add(prompt(30), Params(max_tokens=60), matcher=matcher)))
        steps.append(made.steps)
    assert answers[0] == answers[1]
    assert steps[0] < steps[1]


def best(ids, asked):
    """Returns the best beam, of a network that has only blocks, without other requests."""
    made = engine()
    return run(made, made.add(ids, asked))[0][: asked.max_tokens]


def assert_counted(made):
    """Checks that references to blocks and slots are those of running sequences, and no slot is lost or has two
    checkpoints."""
    states, running = made.states, made.scheduler.running
    holders = Counter(block for one in running for block in one.blocks)
    assert Counter(dict(enumerate(made.blocks._holders))) == holders
    users = Counter(slot for one in running for slot in {one.state_slot, *one.written} - {NO_STATE})
    assert states._users == [users[slot] for slot in range(states.total)]
    kept = [one.slot for one in states._checkpoints.values()]
    assert sorted([*states._free, *{*users, *kept}]) == list(range(states.total))
    assert len({*kept}) == len(kept)
    assert {*states._checkpoints} <= {serial for _, serial in made.blocks._found.values()}


def in_common(ids, others):
    return next((at for at, (one, other) in enumerate(zip(ids, others)) if one != other), min(len(ids), len(others)))  # noqa: B905


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 1022, 5066])
@pytest.mark.parametrize(
    ("kind", "blocks", "states", "step_tokens", "caching"),
    [
        (HybridNetwork, 400, 0, 32, True),
        (HybridNetwork, 60, 14, 32, True),
        (HybridNetwork, 48, 12, 16, False),
        (HybridNetwork, 60, 13, 64, True),
        (FakeNetwork, 60, 0, 32, True),
    ],
)
def test_many_texts_together_are_what_each_is_alone(seed, kind, blocks, states, step_tokens, caching):
    """Random arrivals, shared prefixes, next turns, n, beams, draft tokens, salts, adapters, cancellations, failed
    steps, steps without some clients, and with few blocks and slots many preemptions."""
    dice = random.Random(seed)
    proposer, adapters = draft(2, main=kind(SIZE)) if seed % 2 else None, AdapterTable(None, (), 3)
    made = hybrid(
        blocks,
        kind=kind,
        pad_to=SIZE if kind is FakeNetwork else 1,
        step_tokens=step_tokens,
        states=states,
        caching=caching,
        interval=20,
        proposer=proposer,
        adapters=adapters,
    )
    leave_out_at_random(made, seed)
    base, turns = prompt(60, seed), []
    kinds = [*KINDS, Params(max_tokens=15, n=3, temperature=1.0), Params(max_tokens=15, beams=3)]
    apart = [
        {"cache_salt": salt, "adapter": adapter} for salt in ("", "a") for adapter in (None, Adapter("one", 1.0, {}))
    ]
    live, texts, wanted, cachable = [], {}, {}, []
    for number in range(30):
        own = base[: dice.randrange(60)] + prompt(dice.randrange(1, 20), number)
        if turns and dice.random() < 0.3:
            own = dice.choice(turns)[:80] + prompt(dice.randrange(1, 5), number)
        which = dice.choice([0, 0, 0, 1, 2, 3])
        asked = replace(dice.choice(kinds), priority=dice.randrange(3), seed=number, client="abc"[number % 3])
        wanted[number] = best(own, asked) if asked.beams > 1 else alone(own, asked)
        turns.append(own + wanted[number])
        texts[number] = []
        live.append((number, made.add(own, replace(asked, **apart[which]))))
        cachable.append((live[-1][1], which, own, own + wanted[number]))
        for _ in range(dice.randrange(5)):
            disturbed_step(made, dice, live, texts, wanted)
            if made.runner.running is None:
                assert_counted(made)
    while made.busy():
        disturbed_step(made, dice, live, texts, wanted)
        if made.runner.running is None:
            assert_counted(made)
    assert {number: texts[number] for number in wanted} == wanted
    assert made.scheduler.tables.available == made.scheduler.tables.total
    assert made.blocks.available == blocks
    assert made.states.available == made.states.total
    assert not any(adapters._users.values())
    assert bool(made.scheduler.preemptions) is (blocks < 100)
    for request, which, own, _ in cachable:
        shared = (in_common(own, text) for other, same, _, text in cachable if same == which and other is not request)
        assert request.cached <= max(shared, default=0)
