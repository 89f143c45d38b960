"""Features around the steps of an engine: they observe steps, hold sequences back and handle commands."""

from dataclasses import dataclass

import pytest

from lean_ovms.engine.paged.parts import StepHook
from lean_ovms.engine.protocol import COMMAND, PrefixCacheReset, Record
from lean_ovms.errors import NotSupported
from tests.engine.paged.harness import Params
from tests.engine.paged.test_engine import alone, engine, prompt, run

ASKED = Params(max_tokens=6)


@dataclass
class Wish(Record):
    """A command of a feature."""

    role = COMMAND
    unhandled = "nobody grants wishes"
    id: int


class Recorder(StepHook):
    """Records the calls of its methods. Sequences wait until they have been asked about `held` times."""

    def __init__(self, grants=True, held=0):
        self.told, self.grants, self.held, self.blocks = [], grants, held, []

    @property
    def working(self):
        return self.held > 0

    def added(self, sequence):
        self.told.append(("added", sequence.request.id))

    def must_wait(self, sequence, root):
        self.held -= self.held > 0
        return self.held > 0

    def give_back(self):
        self.told.append("give_back")
        made, self.blocks = self.blocks, []
        for blocks, manager in made:
            manager.release(blocks)

    def begin_step(self):
        self.told.append("begin")

    def end_step(self, tokens):
        self.told.append(("end", tokens))

    def changed(self):
        self.told.append("changed")

    def rest(self):
        self.told.append("rest")

    def handle(self, command):
        self.told.append(type(command).__name__)
        return self.grants and isinstance(command, Wish)

    def stats(self):
        return {"steps": float(self.told.count("begin"))}

    def close(self):
        self.told.append("close")


def hooked(*hooks, blocks=200, **options):
    made = engine(blocks, **options)
    made.hooks += hooks
    return made


def test_a_step_is_told_from_its_beginning_to_its_end():
    hook = Recorder()
    made = hooked(hook)
    request = made.add(prompt(9), Params(max_tokens=2))
    made.step()
    assert hook.told == [("added", 1), "begin", ("end", 9), "changed"]
    run(made, request)
    assert hook.told[4:] == ["begin", "changed", "rest"]  # the end of a step without prompts is not reported
    assert made.stats().of_features == {"steps": 2.0}
    made.close()
    assert hook.told[-1] == "close"


def test_a_sequence_waits_as_long_as_any_hook_says_and_others_pass():
    made = hooked(Recorder(), Recorder(held=4))
    request = made.add(prompt(9), ASKED)
    for _ in range(3):
        made.step()
        assert not made.scheduler.running
    assert not made.idle
    assert run(made, request) == [alone(prompt(9), ASKED)]


def test_blocks_that_a_feature_holds_go_back_to_a_running_sequence():
    hook = Recorder()
    made = hooked(hook, blocks=8)
    hook.blocks = [([made.blocks.allocate() for _ in range(5)], made.blocks)]
    assert run(made, made.add(prompt(20), ASKED)) == [alone(prompt(20), ASKED)]
    assert "give_back" in hook.told
    assert made.scheduler.preemptions == 0


def test_a_command_that_no_hook_handles_says_what_it_needs():
    hooks = Recorder(grants=False), Recorder()
    made = hooked(*hooks)
    made.handle(Wish(1))
    assert [hook.told for hook in hooks] == [["Wish", "changed"]] * 2
    hooks[1].grants = False
    with pytest.raises(NotSupported, match="nobody grants wishes"):
        made.handle(Wish(2))
    with pytest.raises(NotSupported, match="nobody grants wishes"):
        engine(200).handle(Wish(3))


def test_all_hooks_hear_of_a_reset_which_the_engine_answers():
    hooks = Recorder(), Recorder()
    made = hooked(*hooks)
    made.reset_prefix_cache(disk=True)
    assert [hook.told for hook in hooks] == [["ResetPrefixCache", "changed"]] * 2
    assert made.out == [PrefixCacheReset(1)]
