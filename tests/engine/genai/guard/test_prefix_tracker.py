"""Which prompt waits for which other one, block by block."""

from lean_ovms.engine.genai.guard.kv_budget import KvBudget
from lean_ovms.engine.genai.guard.prefix_tracker import PrefixTracker
from lean_ovms.engine.genai.guard.sequence import GuardedSequence
from lean_ovms.engine.generation.sequence import GenerationRequest
from lean_ovms.types import SamplingParams


def sequence(*prompt):
    request = GenerationRequest(1, SamplingParams(), {0}, prompt=list(prompt), max_tokens=9)
    return GuardedSequence(request=request, index=0)


A, B, C = (tuple(range(start, start + 4)) for start in (10, 20, 30))


def watch(max_known=100):
    return PrefixTracker(block_size=4, max_known=max_known)


def test_the_same_first_block_in_the_making_is_waited_for():
    prefixes = watch()
    prefixes.add(sequence(*A, *B))
    assert prefixes.must_wait(sequence(*A, *C))
    assert not prefixes.must_wait(sequence(*B, *A))


def test_less_than_a_block_is_not_waited_for():
    prefixes = watch()
    prefixes.add(sequence(*A[:3]))
    assert not prefixes.must_wait(sequence(*A[:3]))


def test_the_wait_is_over_when_the_prompt_is_through():
    prefixes = watch()
    first = sequence(*A, *B)
    prefixes.add(first)
    prefixes.prompt_computed(first)
    assert not prefixes.must_wait(sequence(*A, *B))


def test_a_known_beginning_and_a_new_end_in_the_making_is_waited_for():
    prefixes = watch()
    first = sequence(*A)
    prefixes.add(first)
    prefixes.prompt_computed(first)
    prefixes.add(sequence(*A, *B))
    assert prefixes.must_wait(sequence(*A, *B, *C))
    assert not prefixes.must_wait(sequence(*A, *C))


def test_the_wait_is_over_when_the_other_is_gone():
    prefixes = watch()
    first = sequence(*A)
    prefixes.add(first)
    prefixes.remove(first)
    assert not prefixes.must_wait(sequence(*A))


def test_the_first_of_two_keeps_its_claim_when_the_second_goes():
    prefixes = watch()
    first, second = sequence(*A), sequence(*A)
    prefixes.add(first)
    prefixes.add(second)
    prefixes.remove(second)
    assert prefixes.must_wait(sequence(*A))


def test_generated_tokens_of_the_preempted_count_as_prompt():
    prefixes = watch()
    again = sequence(*A)
    again.generated += B
    prefixes.add(again)
    assert prefixes.must_wait(sequence(*A, *B))


def test_what_is_known_has_an_end_and_the_oldest_goes_first():
    prefixes = watch(max_known=2)
    for block in (A, B, C):
        one = sequence(*block)
        prefixes.add(one)
        prefixes.prompt_computed(one)
    prefixes.add(sequence(*A))
    prefixes.add(sequence(*C))
    assert prefixes.must_wait(sequence(*A))
    assert not prefixes.must_wait(sequence(*C))


def test_accounts_round_up_to_blocks_and_tell_when_too_much_is_booked():
    kv = KvBudget(total_blocks=3, block_size=4)
    assert [kv.blocks(n) for n in (1, 4, 5, 12)] == [1, 1, 2, 3]
    assert kv.tokens == 12
    kv.allocate(3)
    assert not kv.exceeded
    kv.allocate(1)
    assert kv.exceeded
    kv.free(4)
    assert kv.used == 0


# --- what the cache has for certain


def add(prefixes, kv, *prompt):
    """What a sequence is told to find when it is added, and the sequence."""
    one = sequence(*prompt)
    found = prefixes.cached_tokens(one, kv.allocated)
    prefixes.add(one, kv.reused_after)
    one.blocks = kv.blocks(one.length + 1)
    kv.allocate(one.blocks)
    return found, one


def finish(prefixes, kv, one, *generated):
    prefixes.prompt_computed(one)
    one.generated += generated
    prefixes.answer_computed(one)
    kv.free(one.blocks)


def test_whole_blocks_of_an_earlier_prompt_are_counted_but_never_the_last_token():
    prefixes, kv = watch(), KvBudget(100, 4)
    found, one = add(prefixes, kv, *A, *B)
    assert found == 0
    finish(prefixes, kv, one)
    assert add(prefixes, kv, *A, *B)[0] == 4
    assert add(prefixes, kv, *A, *B, 1)[0] == 8
    assert add(prefixes, kv, *A, *C)[0] == 4
    assert add(prefixes, kv, *C, *A)[0] == 0


def test_an_answer_is_found_by_the_next_turn():
    prefixes, kv = watch(), KvBudget(100, 4)
    _, one = add(prefixes, kv, *A)
    finish(prefixes, kv, one, *B, 1)
    assert add(prefixes, kv, *A, *B, *C)[0] == 8
    assert add(prefixes, kv, *A, *B, 1, 2, 3, 4)[0] == 8


def test_a_prompt_that_is_being_computed_is_not_counted():
    prefixes, kv = watch(), KvBudget(100, 4)
    add(prefixes, kv, *A, *B)
    assert add(prefixes, kv, *A, *B, 1)[0] == 0


def test_what_others_may_have_overwritten_is_not_counted():
    prefixes, kv = watch(), KvBudget(6, 4)
    _, one = add(prefixes, kv, *A)
    finish(prefixes, kv, one)
    found, other = add(prefixes, kv, *B)
    finish(prefixes, kv, other)
    assert found == 0
    assert add(prefixes, kv, *A, 1)[0] == 4
    for start in (100, 200):
        _, other = add(prefixes, kv, *range(start, start + 8))
        finish(prefixes, kv, other)
    assert add(prefixes, kv, *B, 1)[0] == 0
