"""What the guard of openvino_genai's pipelines adds: counts of blocks, half computed prompts, lost sequences."""

from lean_ovms.engine.generation import fake_tokenizer as words
from lean_ovms.engine.protocol import Tokens
from lean_ovms.features.genai_pipelines.child.guard import backend
from tests.engine.rig import Rig
from tests.features.genai_pipelines.guard.fake_pipeline import LOSE, STALL


def blocks_in_pipeline(rig):
    return rig.pipeline.count_blocks({})


def run_watching(rig, most=5000):
    """Run to the end; the pipeline never holds more than is booked, and no more is booked than exists."""
    for _ in range(most):
        if rig.backend.idle and not rig.transport.inbox:
            return
        rig.turn()
        assert blocks_in_pipeline(rig) <= rig.pipeline.script.blocks
        assert all(h.state != "lost" for h in rig.pipeline.live)
    raise AssertionError("still at work")


# --- KV budget


def test_growing_sequences_are_booked_block_by_block():
    rig = Rig()
    rig.submit([1] * 31, ignore_eos=True, max_tokens=200)
    used = set()
    while not rig.backend.idle or rig.transport.inbox:
        rig.turn()
        used.add(rig.stats().kv_blocks_used)
    assert used == {0, *range(2, 9)}


def test_a_preempted_sampler_goes_on_with_other_random_numbers():
    rig = Rig(blocks=6)
    rig.submit("ab" * 20, ignore_eos=True, max_tokens=120)
    rig.turn()
    rig.submit("cd" * 20, ignore_eos=True, max_tokens=120, temperature=1.0, seeds=(7,))
    works = []
    add = rig.pipeline.add
    rig.pipeline.add = lambda work: (works.append(work), add(work))[1]
    run_watching(rig)
    again = works[-1]
    assert (again.seed, again.done) == (7, len(again.tokens) - 40)
    assert again.max_tokens == 120 - again.done
    assert again.done > 0


def test_min_tokens_shrinks_with_a_preemption():
    rig = Rig(blocks=6)
    rig.submit("ab" * 20, ignore_eos=True, max_tokens=120)
    rig.turn()
    request = rig.submit("cd" * 17 + "e", min_tokens=100, max_tokens=120)
    run_watching(rig)
    answer = rig.answer(request)
    assert rig.stats().preemptions
    assert answer.reasons == {0: "stop"}
    assert len(answer.tokens[0]) == 106


def test_a_penalised_sequence_stays_when_another_can_go():
    rig = Rig(blocks=6)
    other = rig.submit("ab" * 20, ignore_eos=True, max_tokens=120)
    rig.turn()
    penalised = rig.submit("cd" * 20, ignore_eos=True, max_tokens=120, presence_penalty=1.0)
    run_watching(rig)
    order = [r.id for f in rig.transport.frames for r in f if isinstance(r, Tokens) and r.reason]
    assert order == [penalised, other]


def constrained(rig, request_id):
    """Turn a request into one with a grammar, which the script ignores."""
    rig.turn()
    request = rig.scheduler.requests[request_id]
    request.constraint = "{}"


def test_a_sequence_with_a_grammar_stays_when_another_can_go():
    rig = Rig(blocks=6)
    penalised = rig.submit("ab" * 20, ignore_eos=True, max_tokens=120, presence_penalty=1.0)
    constrained(rig, grammar := rig.submit("cd" * 20, ignore_eos=True, max_tokens=120))
    run_watching(rig)
    order = [r.id for f in rig.transport.frames for r in f if isinstance(r, Tokens) and r.reason]
    assert order == [grammar, penalised]


def test_a_sequence_with_a_grammar_begins_again_and_sends_nothing_twice():
    """The pipeline would match the grammar from its beginning against what follows in the middle."""
    rig = Rig(blocks=6)
    constrained(rig, old := rig.submit("ab" * 20, ignore_eos=True, max_tokens=120))
    constrained(rig, new := rig.submit("cd" * 20, ignore_eos=True, max_tokens=120, logprobs=True))
    works = []
    add = rig.pipeline.add
    rig.pipeline.add = lambda work: (works.append(work), add(work))[1]
    run_watching(rig)
    assert rig.stats().preemptions
    assert all((w.done, w.max_tokens, len(w.tokens)) == (0, 120, 40) for w in works)
    assert rig.answer(old).text() == "ab" * 60
    assert rig.answer(new).text() == "cd" * 60
    assert len(rig.answer(new).logprobs[0]) == 120


def test_a_sequence_with_a_grammar_that_comes_out_otherwise_fails_alone():
    rig = Rig(blocks=6)
    old = rig.submit("ab" * 20, ignore_eos=True, max_tokens=120)
    constrained(rig, new := rig.submit("cd" * 20, ignore_eos=True, max_tokens=120, n=2, seeds=(0, 0)))
    add = rig.pipeline.add

    def otherwise(work):
        handle = add(work)
        if work.constraint:
            handle.answer[3] = ord("x")
        return handle

    rig.pipeline.add = otherwise
    run_watching(rig)
    assert rig.answer(new).failed[0] == "EngineFailure"
    assert "restart this answer" in rig.answer(new).failed[1]
    assert rig.answer(old).text() == "ab" * 60
    assert rig.stats().kv_blocks_used == 0


def test_sequences_with_a_grammar_do_not_start_while_one_is_compiled(monkeypatch):
    rig = Rig(blocks=6)
    plain = rig.submit("ab" * 20, ignore_eos=True, max_tokens=120)
    constrained(rig, grammar := rig.submit("cd" * 20, ignore_eos=True, max_tokens=120))
    while not rig.stats().preemptions:
        rig.scheduler.requests[plain].constraint = "{}"
        rig.turn()
    waiting = next(iter(rig.scheduler.waiting)).request.id
    admit = rig.backend.admit
    monkeypatch.setattr(rig.backend, "admit", lambda *, compiling: admit(compiling=True))
    other = plain if waiting == grammar else grammar
    rig.cancel(other)
    rig.turn(5)
    assert [s.request.id for s in rig.scheduler.waiting] == [waiting]
    monkeypatch.undo()
    rig.run()
    assert len(rig.answer(waiting).tokens[0]) == 120


def test_a_beam_search_is_booked_whole_and_never_preempted():
    rig = Rig(blocks=40)
    rig.submit("ab" * 20, ignore_eos=True, max_tokens=900)
    rig.turn(2)
    rig.submit("hello", beams=4, n=2, max_tokens=60)
    rig.turn()
    stats = rig.stats()
    assert stats.queued == 0
    assert stats.running == 1  # the script's beams end in one step
    rig = Rig(blocks=20, step_tokens=8)
    search = rig.submit("hello" * 10, beams=4, n=1, max_tokens=32)
    rig.turn()
    assert rig.stats().kv_blocks_used == 2 + 4 * 3
    run_watching(rig)
    assert rig.answer(search).reasons == {0: "length"}


def test_a_request_for_prompt_logprobs_starts_first_of_all_and_nobody_passes_it():
    """GenAI mixes its log probabilities up with those of whoever is before it in the batch."""
    rig = Rig()
    before = [rig.submit("before", max_tokens=9) for _ in range(2)]
    rig.turn(2)
    echo, after = rig.submit("echo", prompt_logprobs=True), rig.submit("after")
    first = []
    add = rig.pipeline.add
    rig.pipeline.add = lambda work: (first.append((work.echo, len(rig.pipeline.live))), add(work))[1]
    rig.run()
    assert first == [(True, 0), (False, 1)]
    assert [rig.answer(i).text() for i in (*before, echo, after)] == ["before", "before", "echo", "after"]


# --- prefixes
PREFIX = "the same beginning of more than thirty-two characters, "


def test_a_prompt_that_is_half_in_the_prefix_cache_is_computed_to_its_end_though_nobody_wants_it():
    rig = Rig(prefix_caching=True, step_tokens=16)
    request, other = rig.submit(PREFIX), rig.submit("other")
    rig.turn(2)
    rig.cancel(request)
    rig.turn()
    assert request in {s.request.id for s in rig.scheduler.running}
    rig.run()
    assert not rig.answer(request).tokens
    assert rig.answer(other).text() == "other"
    assert (rig.stats().running, rig.stats().kv_blocks_used) == (0, 0)


def test_of_many_prompts_that_nobody_wants_only_the_one_in_work_is_computed():
    rig = Rig(prefix_caching=True, step_tokens=16)
    requests = [rig.submit(f"{i}{PREFIX}") for i in range(5)]
    rig.turn(2)
    for request in reversed(requests):
        rig.cancel(request)
    rig.turn()
    assert [s.request.id for s in rig.scheduler.running] == requests[:1]
    rig.run()
    assert (rig.stats().running, rig.stats().kv_blocks_used) == (0, 0)


def test_a_step_that_fails_ends_those_whom_nobody_wants():
    rig = Rig(prefix_caching=True, step_tokens=16)
    request, other = rig.submit(PREFIX), rig.submit("other", max_tokens=40, ignore_eos=True)
    rig.turn(2)
    rig.cancel(request)
    rig.turn()
    rig.submit([words.RAISE])
    rig.run()
    assert not rig.answer(request).tokens
    assert rig.answer(request).failed is None
    assert len(rig.answer(other).tokens[0]) == 40


# --- the pipeline gives up on somebody


def test_whoever_the_pipeline_lost_is_taken_up_again_with_what_it_has():
    rig = Rig()
    request = rig.submit("hello there")
    rig.turn(4)
    rig.pipeline.live[0].state = "lost"
    rig.run()
    assert rig.answer(request).text() == "hello there"


def test_the_lost_is_found_while_others_keep_the_pipeline_talking():
    rig = Rig()
    request, other = rig.submit("hello there"), rig.submit("x", ignore_eos=True, max_tokens=100)
    rig.turn(4)
    rig.pipeline.live[0].state = "lost"
    rig.run()
    assert rig.answer(request).text() == "hello there"
    assert len(rig.answer(other).tokens[0]) == 100


def test_whoever_is_lost_again_and_again_fails_in_the_end():
    rig = Rig()
    request, other = rig.submit([LOSE]), rig.submit("hello")
    rig.run()
    assert rig.answer(request).failed[0] == "EngineFailure"
    assert "KV cache" in rig.answer(request).failed[1]
    assert rig.answer(other).text() == "hello"
    assert rig.stats().kv_blocks_used == 0


def test_an_end_that_the_pipeline_does_not_tell_is_an_end():
    rig = Rig()
    request = rig.submit("hello")
    rig.turn(2)
    rig.pipeline.live[0].state = "finished"
    rig.run()
    answer = rig.answer(request)
    assert (answer.text(), answer.reasons) == ("he", {0: "stop"})


def test_a_stuck_pipeline_costs_the_stuck_request_only():
    rig = Rig()
    now = [0.0]
    rig.scheduler.waiting.clock = lambda: now.__setitem__(0, now[0] + 0.01) or now[0]
    stuck, other = rig.submit([STALL]), rig.submit("hello")
    rig.run()
    assert rig.answer(stuck).failed[0] == "EngineFailure"
    assert rig.answer(other).text() == "hello"
    assert now[0] > backend.STUCK_S


def test_a_long_prefill_is_not_taken_for_stuck():
    rig = Rig(step_tokens=4)
    rig.scheduler.waiting.clock = iter(range(0, 10**6, 100)).__next__
    assert rig.ask("x" * 400, max_tokens=3).text() == "xxx"
    assert rig.stats().recoveries == 0


def test_an_add_that_raises_after_all_fails_its_request_alone():
    from lean_ovms.errors import BadRequest

    rig = Rig()
    add = rig.pipeline.add

    def picky(work):
        if work.tokens[0] == ord("b"):
            raise BadRequest("no")
        return add(work)

    rig.pipeline.add = picky
    good, bad = rig.submit("good"), rig.submit("bad", n=2, seeds=(1, 2), temperature=1.0)
    rig.run()
    assert rig.answer(bad).failed[:2] == ["BadRequest", "no"]
    assert rig.answer(good).text() == "good"
    assert not rig.scheduler.requests


# --- the law: one final per sequence, whatever happens


def test_right_guesses_of_an_assistant_are_counted():
    """The first output has one token; the other nine come in outputs of three."""
    rig = Rig(speculative="prompt_lookup", tokens_per_step=3)
    rig.ask("abcdefghijklm", max_tokens=10, ignore_eos=True)
    stats = rig.stats()
    generated = 10
    assert stats.drafts >= 3
    assert stats.accepted > 0
    assert stats.drafts + stats.accepted <= generated
    assert stats.speculative
    assert stats.drafted is None  # only outputs are seen here
    assert list(stats.accepted_by_position) == sorted(stats.accepted_by_position, reverse=True)
    assert sum(stats.accepted_by_position) == stats.accepted
    plain = Rig()
    plain.ask("abc", max_tokens=10)
    assert (plain.stats().speculative, plain.stats().drafts, plain.stats().accepted) == (False, 0, 0)
