"""Fair admission with each scheduler: no client starves, no slot is idle, and each id has exactly one outcome."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lean_ovms.engine.paged.scheduler import MAX_PASSES
from lean_ovms.engine.paged.scheduling_rules import MIN_RUN_TOKENS
from tests.engine.rig import Rig, queue_limits

SLOTS = 8
LONG = {"ignore_eos": True, "max_tokens": 4000}


def make(slots=SLOTS, queued=4096, **script):
    limits = {name: script.pop(name) for name in ("queued_by_client", "queued_tokens") if name in script}
    return Rig(limits=queue_limits(queued, **limits), running=slots, **script)


def turns_until_first_token(rig, request, most=300):
    for turn in range(1, most):
        rig.turn()
        if rig.answer(request).tokens:
            return turn
    raise AssertionError(f"no token after {most} turns")


def starts(rig):
    """Returns the requests in the order in which their sequences are added; preempted ones are added again."""
    found = []
    start = rig.scheduler.start
    rig.scheduler.start = lambda sequence: (found.append(sequence.request), start(sequence))[1]
    return found


def hostile(rig, prompts=128, n=20, **sampling):
    """Sends one HTTP request with many sequences."""
    seeds = tuple(range(n))
    asked = {"n": n, "seeds": seeds, "temperature": 1.0, **LONG, **sampling}
    return [rig.submit(f"prompt {i}", client="hostile", group=1, **asked) for i in range(prompts)]


# --- between clients


def test_a_batch_with_as_many_sequences_as_a_step_can_take_gives_way_too():
    rig = make(slots=64, step_tokens=16)
    hostile(rig, prompts=8, n=4)
    rig.turn(40)
    full = rig.stats().running
    assert full == 12  # a quarter of the step is reserved for prompts
    polite = rig.submit("hello", client="polite", max_tokens=5)
    assert turns_until_first_token(rig, polite) <= 2 + MIN_RUN_TOKENS
    assert rig.stats().running == full


@pytest.mark.slow
def test_a_batch_that_has_just_started_gives_way_after_its_least_run():
    rig = make()
    hostile(rig, prompts=8, n=4)
    rig.turn()
    polite = rig.submit("hello", client="polite", max_tokens=5)
    assert MIN_RUN_TOKENS <= turns_until_first_token(rig, polite) <= MIN_RUN_TOKENS + 3


def test_many_single_requests_do_not_keep_another_client_waiting_either():
    rig = make()
    for i in range(64):
        rig.submit(f"number {i}", client="hostile", group=10 + i, **LONG)
    rig.turn(MIN_RUN_TOKENS + 2)
    polite = rig.submit("hello", client="polite", max_tokens=5)
    assert turns_until_first_token(rig, polite) <= 2


def test_those_who_gave_way_continue_and_say_the_same():
    rig = make(slots=2)
    texts = ["abcd", "efgh", "ijkl"]
    before = [rig.submit(text, client="hostile", ignore_eos=True, max_tokens=60) for text in texts]
    rig.turn(MIN_RUN_TOKENS + 2)
    for _ in range(3):
        rig.submit("hello", client="polite", max_tokens=5)
        rig.turn(3)
    rig.run()
    assert rig.stats().preemptions > 0
    assert [rig.answer(i).text() for i in before] == [text * 15 for text in texts]


@pytest.mark.slow
def test_two_clients_with_much_work_share_the_slots_and_then_the_tokens():
    rig = make()
    for i in range(100):
        rig.submit(f"a {i}", client="a", ignore_eos=True, max_tokens=50)
    rig.turn(MIN_RUN_TOKENS + 2)
    for i in range(100):
        rig.submit(f"b {i}", client="b", ignore_eos=True, max_tokens=50)
    rig.turn(3 * MIN_RUN_TOKENS)
    clients = rig.scheduler.waiting.clients
    assert [clients[name].running for name in "ab"] == [SLOTS // 2, SLOTS // 2]
    began = {name: clients[name].charged for name in "ab"}
    rig.turn(300)
    served = {name: clients[name].charged - began[name] for name in "ab"}
    assert served["a"] == pytest.approx(served["b"], rel=0.2)


def test_a_client_that_comes_back_has_saved_nothing_up():
    rig = make(slots=1)
    rig.ask("rest", client="a", ignore_eos=True, max_tokens=500)
    rig.ask("rest", client="b", ignore_eos=True, max_tokens=3)
    started = starts(rig)
    for _ in range(6):
        rig.submit("x", client="b", max_tokens=2)
        rig.submit("x", client="a", max_tokens=2)
    rig.run()
    order = [request.client for request in started]
    assert order[:4].count("a") == order[:4].count("b") == 2
    assert not rig.scheduler.waiting.clients


# --- within a client


def test_requests_of_one_client_run_in_their_order():
    rig = make(slots=1)
    started = starts(rig)
    ids = [rig.submit("x", client="a", max_tokens=2) for _ in range(5)]
    rig.run()
    assert [request.id for request in started] == ids


def test_the_lower_priority_starts_first_among_one_clients_requests():
    rig = make(slots=1)
    started = starts(rig)
    rig.submit("x", client="a", max_tokens=2)
    rig.turn()
    late, early, usual = (rig.submit("x", client="a", max_tokens=2, priority=p) for p in (5, -5, 0))
    rig.run()
    assert [request.id for request in started][1:] == [early, usual, late]


def test_a_priority_orders_all_clients_requests_with_the_option():
    rig = Rig(limits=queue_limits(99), running=1, priority_across_clients=True)
    started = starts(rig)
    for _ in range(4):
        rig.submit("x", client="pushy", max_tokens=2, priority=-1)
    rig.submit("x", client="other", max_tokens=2)
    rig.run()
    assert [request.client for request in started] == ["pushy"] * 4 + ["other"]


def test_a_higher_priority_does_not_give_way_across_clients_with_the_option():
    rig = Rig(limits=queue_limits(99), running=2, priority_across_clients=True)
    urgent = [rig.submit("x", client="a", priority=-1, **LONG) for _ in range(2)]
    rig.turn(MIN_RUN_TOKENS + 3)
    rig.submit("x", client="b", max_tokens=2)
    rig.turn(50)
    assert {s.request.id for s in rig.scheduler.running} == set(urgent)


# --- KV blocks


def test_a_small_request_gets_blocks_from_a_client_that_holds_all():
    rig = make(slots=64, blocks=64)
    for _ in range(30):
        rig.submit("ab" * 64, client="hostile", **LONG)
    rig.turn(MIN_RUN_TOKENS + 2)
    polite = rig.submit("hello " * 10, client="polite", max_tokens=5)
    assert turns_until_first_token(rig, polite) <= 3


def test_the_client_with_most_blocks_pays_when_the_cache_is_full():
    rig = make(slots=64, blocks=32)
    polite = rig.submit("hello", client="polite", ignore_eos=True, max_tokens=200)
    rig.turn()
    for _ in range(6):
        rig.submit("ab" * 64, client="hostile", ignore_eos=True, max_tokens=300)
    again = rig.submit("hello", client="polite", ignore_eos=True, max_tokens=200)
    preempted = []
    put_back = rig.scheduler.waiting.put_back
    rig.scheduler.waiting.put_back = lambda s, first: (preempted.append(s.request.client), put_back(s, first=first))[1]
    while not {0} <= set(rig.answer(again).reasons):
        rig.turn()
    assert preempted
    assert set(preempted) == {"hostile"}
    assert rig.answer(polite).reasons == {0: "length"}


def test_one_that_lacks_blocks_is_passed_by_others_so_many_times():
    rig = make(slots=64, blocks=40)
    started = starts(rig)
    rig.submit("a" * 600, client="a", ignore_eos=True, max_tokens=100)
    rig.turn()
    large = rig.submit("b" * 700, client="b", ignore_eos=True, max_tokens=100)
    for _ in range(3 * MAX_PASSES):
        rig.submit("c", client="c", max_tokens=2)
    rig.run()
    order = [request.id for request in started]
    assert order.index(large) <= MAX_PASSES + 2


# --- prompts


@pytest.mark.parametrize("length", [50, 20])
def test_steps_are_as_full_as_without_the_limit_on_prompts(length: int):
    rig = make(slots=64, step_tokens=64)
    for i in range(12):
        rig.submit(chr(97 + i) * length, max_tokens=1)
    turns = 0
    while not rig.backend.idle or rig.transport.inbox:
        rig.turn()
        turns += 1
    assert turns == -(-12 * length // 64)


def test_prompts_wait_for_what_is_really_left_of_one_whose_parts_shrink():
    """The paged engine may compute less of a long prompt in a step than would fit."""
    rig = make(slots=64, step_tokens=64)
    rig.scheduler.chunk_sizes.part = lambda start, left, budget: (min(left, 16), 16)
    decoding = rig.submit("x", max_tokens=200, ignore_eos=True)
    rig.turn()
    for i in range(3):
        rig.submit(f"{i}" + "long " * 120, group=10 + i, max_tokens=2)
    rig.turn(30)  # 480 of 600 tokens; steps of 64 would have computed all of them
    assert len(rig.scheduler.batch.prefilling) == 1
    rig.run()
    assert len(rig.answer(decoding).tokens[0]) == 200
    assert not rig.scheduler.batch.prefilling


def test_many_short_prompts_wait_for_one_another_where_steps_are_shared():
    rig = make(slots=64, step_tokens=64)
    rig.submit("long " * 600, client="hostile", group=9, max_tokens=2)
    for i in range(40):
        rig.submit(f"{i:02} this is short", client="hostile", group=10 + i, max_tokens=20)
    rig.turn()
    assert len(rig.scheduler.running) == 1 + 2  # of 16 tokens each, in half a step of 64
    polite = rig.submit("hello", client="polite", max_tokens=2)
    assert turns_until_first_token(rig, polite) <= 3


# --- limits


def test_one_clients_requests_in_the_queue_are_limited():
    rig = make(slots=1, queued_by_client=3)
    ids = [rig.submit("x", client="a", group=i + 1, **LONG) for i in range(6)]
    rig.turn()
    assert [rig.answer(i).refused is None for i in ids] == [True] * 4 + [False] * 2
    refused = rig.answer(ids[-1]).refused
    assert refused[0] == "TooManyRequests"
    assert "3 requests of this client" in refused[1]
    other = rig.submit("x", client="b", max_tokens=2)
    rig.turn()
    assert rig.answer(other).accepted


def test_one_clients_tokens_in_the_queue_are_limited():
    rig = make(slots=1, queued_tokens=100)
    ids = [rig.submit("x" * 60, client="a", group=i + 1, **LONG) for i in range(5)]
    rig.turn()
    assert [rig.answer(i).refused is None for i in ids] == [True, True, True, False, False]
    assert "120 prompt tokens of this client" in rig.answer(ids[-1]).refused[1]


def test_further_prompts_of_a_request_are_limited_where_others_wait_with_their_tokens():
    """A single request passes, because its sum is already limited. Many requests with many prompts each would fill
    the memory."""
    rig = make(slots=1, queued_tokens=100)
    first = [rig.submit("x" * 60, client="a", group=1, **LONG) for _ in range(5)]
    rig.turn()
    assert all(rig.answer(i).accepted for i in first)
    for i in first[2:]:
        rig.cancel(i)
    rig.turn()  # one runs, and one waits
    second = [rig.submit("x" * 60, client="a", group=2, **LONG) for _ in range(4)]
    rig.turn()
    assert [rig.answer(i).refused is None for i in second] == [True, False, False, False]
    assert "120 prompt tokens of this client" in rig.answer(second[1]).refused[1]
    more = rig.submit("x", client="b", group=3, **LONG)
    rig.turn()
    assert rig.answer(more).accepted


def test_a_full_queue_has_a_place_for_another_client():
    rig = make(slots=1, queued=4)
    ids = [rig.submit("x", client="a", group=i + 1, **LONG) for i in range(6)]
    rig.turn()
    assert rig.answer(ids[-1]).refused
    places = [rig.submit("x", client="b", group=20 + i, max_tokens=2) for i in range(3)]
    rig.turn()
    assert [rig.answer(i).refused is None for i in places] == [True, True, False]


def test_all_prompts_of_a_request_are_refused_or_none():
    rig = make(slots=1, queued_by_client=3)
    first = [rig.submit("x", client="a", group=1, **LONG) for _ in range(8)]
    rig.turn()
    assert all(rig.answer(i).accepted for i in first)
    second = [rig.submit("x", client="a", group=2, **LONG) for _ in range(8)]
    for i in first[1:]:
        rig.cancel(i)
    rig.turn()
    assert all(rig.answer(i).refused for i in second)


# --- everything at once

asked = st.tuples(
    st.sampled_from(["a", "b", "c", ""]),
    st.integers(0, 3),  # the HTTP request
    st.integers(-1, 1),  # priority
    st.integers(1, 4),  # n
    st.integers(1, 40),  # tokens to generate
    st.integers(1, 90),  # prompt tokens
)
events = st.lists(st.one_of(asked, st.integers(0, 40), st.just("turn")), max_size=40)


def prompts_fill_a_step(scheduler):
    return sum(scheduler._prompts_left()) >= scheduler._budget()


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events, st.booleans(), st.booleans())
def test_every_request_ends_once_and_no_slot_is_idle_while_something_waits(events, across, caching):
    rig = Rig(
        limits=queue_limits(999), running=3, priority_across_clients=across, step_tokens=64, prefix_caching=caching
    )
    scheduler = rig.scheduler
    ids, cancelled = [], set()
    step = rig.backend.step

    def step_with_no_slot_idle():
        assert scheduler.full or prompts_fill_a_step(scheduler) or caching or not scheduler.waiting
        return step()

    rig.backend.step = step_with_no_slot_idle
    for event in events:
        if event == "turn":
            if not rig.backend.idle or rig.transport.inbox:
                rig.turn()
        elif isinstance(event, int):
            if event < len(ids):
                rig.cancel(ids[event])
                cancelled.add(ids[event])
        else:
            client, group, priority, n, tokens, length = event
            asked = {"n": n, "seeds": tuple(range(n)), "temperature": 1.0, "ignore_eos": True, "max_tokens": tokens}
            prompt = chr(97 + len(ids) % 26) * length
            group = group and 10 * (1 + ord((client or "z")[0])) + group
            ids.append(rig.submit(prompt, client=client, group=group, priority=priority, **asked))
    for _ in range(3000):
        if rig.backend.idle and not rig.transport.inbox:
            break
        rig.turn()
    assert rig.backend.idle
    for i, number in enumerate(ids):
        if number not in cancelled:
            assert len(rig.answer(number).reasons) == [e for e in events if isinstance(e, tuple)][i][3]
    queue = scheduler.waiting
    assert (queue.clients, queue.queued, len(queue)) == ({}, 0, 0)
    assert rig.stats().kv_blocks_used == 0
