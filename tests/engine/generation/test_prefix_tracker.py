"""Who waits for whose prompt, block by block."""

from lean_ovms.engine.generation.kv_budget import KvBudget
from lean_ovms.engine.generation.prefix_tracker import PrefixTracker
from lean_ovms.engine.generation.sequence import Request, Sequence
from lean_ovms.types import SamplingParams


def sequence(*prompt):
    return Sequence(Request(1, SamplingParams(), {0}), 0, list(prompt), 9, frozenset(), 1)


A, B, C = (tuple(range(start, start + 4)) for start in (10, 20, 30))


def watch(most_known=100):
    return PrefixTracker(block_size=4, most_known=most_known)


def test_the_same_first_block_in_the_making_is_waited_for():
    prefixes = watch()
    prefixes.started(sequence(*A, *B))
    assert prefixes.must_wait(sequence(*A, *C))
    assert not prefixes.must_wait(sequence(*B, *A))


def test_less_than_a_block_is_not_waited_for():
    prefixes = watch()
    prefixes.started(sequence(*A[:3]))
    assert not prefixes.must_wait(sequence(*A[:3]))


def test_the_wait_is_over_when_the_prompt_is_through():
    prefixes = watch()
    first = sequence(*A, *B)
    prefixes.started(first)
    prefixes.computed(first)
    assert not prefixes.must_wait(sequence(*A, *B))


def test_a_known_beginning_and_a_new_end_in_the_making_is_waited_for():
    prefixes = watch()
    first = sequence(*A)
    prefixes.started(first)
    prefixes.computed(first)
    prefixes.started(sequence(*A, *B))
    assert prefixes.must_wait(sequence(*A, *B, *C))
    assert not prefixes.must_wait(sequence(*A, *C))


def test_the_wait_is_over_when_the_other_is_gone():
    prefixes = watch()
    first = sequence(*A)
    prefixes.started(first)
    prefixes.gone(first)
    assert not prefixes.must_wait(sequence(*A))


def test_the_first_of_two_keeps_its_claim_when_the_second_goes():
    prefixes = watch()
    first, second = sequence(*A), sequence(*A)
    prefixes.started(first)
    prefixes.started(second)
    prefixes.gone(second)
    assert prefixes.must_wait(sequence(*A))


def test_generated_tokens_of_the_preempted_count_as_prompt():
    prefixes = watch()
    again = sequence(*A)
    again.generated += B
    prefixes.started(again)
    assert prefixes.must_wait(sequence(*A, *B))


def test_what_is_known_has_an_end_and_the_oldest_goes_first():
    prefixes = watch(most_known=2)
    for block in (A, B, C):
        one = sequence(*block)
        prefixes.started(one)
        prefixes.computed(one)
    prefixes.started(sequence(*A))
    prefixes.started(sequence(*C))
    assert prefixes.must_wait(sequence(*A))
    assert not prefixes.must_wait(sequence(*C))


def test_accounts_round_up_to_blocks_and_tell_when_too_much_is_booked():
    accounts = KvBudget(total_blocks=3, block_size=4)
    assert [accounts.blocks(n) for n in (1, 4, 5, 12)] == [1, 1, 2, 3]
    assert accounts.tokens == 12
    accounts.take(3)
    assert not accounts.over
    accounts.take(1)
    assert accounts.over
    accounts.give(4)
    assert accounts.used == 0


# --- what the cache has for certain


def told(prefixes, accounts, *prompt):
    """What a sequence is told to find when it is added, and the sequence."""
    one = sequence(*prompt)
    found = prefixes.cached(one, accounts.taken)
    prefixes.started(one, accounts.certain)
    one.blocks = accounts.blocks(one.length + 1)
    accounts.take(one.blocks)
    return found, one


def finish(prefixes, accounts, one, *generated):
    prefixes.computed(one)
    one.generated += generated
    prefixes.left(one)
    accounts.give(one.blocks)


def test_whole_blocks_of_an_earlier_prompt_are_told_but_never_the_last_token():
    prefixes, accounts = watch(), KvBudget(100, 4)
    found, one = told(prefixes, accounts, *A, *B)
    assert found == 0
    finish(prefixes, accounts, one)
    assert told(prefixes, accounts, *A, *B)[0] == 4
    assert told(prefixes, accounts, *A, *B, 1)[0] == 8
    assert told(prefixes, accounts, *A, *C)[0] == 4
    assert told(prefixes, accounts, *C, *A)[0] == 0


def test_an_answer_is_found_by_the_next_turn():
    prefixes, accounts = watch(), KvBudget(100, 4)
    _, one = told(prefixes, accounts, *A)
    finish(prefixes, accounts, one, *B, 1)
    assert told(prefixes, accounts, *A, *B, *C)[0] == 8
    assert told(prefixes, accounts, *A, *B, 1, 2, 3, 4)[0] == 8


def test_a_prompt_in_the_making_is_not_told():
    prefixes, accounts = watch(), KvBudget(100, 4)
    told(prefixes, accounts, *A, *B)
    assert told(prefixes, accounts, *A, *B, 1)[0] == 0


def test_what_others_may_have_overwritten_is_not_told():
    prefixes, accounts = watch(), KvBudget(6, 4)
    _, one = told(prefixes, accounts, *A)
    finish(prefixes, accounts, one)
    found, other = told(prefixes, accounts, *B)
    finish(prefixes, accounts, other)
    assert found == 0
    assert told(prefixes, accounts, *A, 1)[0] == 4
    for start in (100, 200):
        _, other = told(prefixes, accounts, *range(start, start + 8))
        finish(prefixes, accounts, other)
    assert told(prefixes, accounts, *B, 1)[0] == 0
