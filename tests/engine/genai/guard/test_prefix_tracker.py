"""Which prompt waits for which other one, block by block."""

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


# --- what the cache has for certain


class Cache:
    """Counts the blocks of a pipeline, as the scheduler does. total: of the cache."""

    def __init__(self, total):
        self.prefixes, self.total = watch(), total
        self.used = self.allocated = 0

    def add(self, *prompt):
        """What a sequence is told to find when it is added, and the sequence."""
        one = sequence(*prompt)
        found = self.prefixes.cached_tokens(one, self.allocated)
        self.prefixes.add(one, self.allocated + self.total - self.used - 1)
        one.blocks = one.length // 4 + 1
        self.allocated += one.blocks
        self.used += one.blocks
        return found, one

    def finish(self, one, *generated):
        self.prefixes.prompt_computed(one)
        one.generated += generated
        self.prefixes.answer_computed(one)
        self.used -= one.blocks


def test_whole_blocks_of_an_earlier_prompt_are_counted_but_never_the_last_token():
    cache = Cache(100)
    found, one = cache.add(*A, *B)
    assert found == 0
    cache.finish(one)
    assert cache.add(*A, *B)[0] == 4
    assert cache.add(*A, *B, 1)[0] == 8
    assert cache.add(*A, *C)[0] == 4
    assert cache.add(*C, *A)[0] == 0


def test_an_answer_is_found_by_the_next_turn():
    cache = Cache(100)
    _, one = cache.add(*A)
    cache.finish(one, *B, 1)
    assert cache.add(*A, *B, *C)[0] == 8
    assert cache.add(*A, *B, 1, 2, 3, 4)[0] == 8


def test_a_prompt_that_is_being_computed_is_not_counted():
    cache = Cache(100)
    cache.add(*A, *B)
    assert cache.add(*A, *B, 1)[0] == 0


def test_what_others_may_have_overwritten_is_not_counted():
    cache = Cache(6)
    _, one = cache.add(*A)
    cache.finish(one)
    found, other = cache.add(*B)
    cache.finish(other)
    assert found == 0
    assert cache.add(*A, 1)[0] == 4
    for start in (100, 200):
        _, other = cache.add(*range(start, start + 8))
        cache.finish(other)
    assert cache.add(*B, 1)[0] == 0
