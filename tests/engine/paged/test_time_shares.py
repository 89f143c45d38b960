"""The time of steps is divided fairly between clients: laws for random loads, and the engine on a simulated clock."""

import random
from dataclasses import dataclass

import pytest

from lean_ovms.engine.generation.fair_queue import ClientQueue
from lean_ovms.engine.paged.network import LOGITS_INPUT
from lean_ovms.engine.paged.scheduling_rules import PAUSE, TimeShares
from tests.engine.paged.harness import Driver, Params
from tests.engine.paged.network import FakeNetwork, logits_after

STEP_S = 0.25
LINE = logits_after([1])


@dataclass
class Load:
    """A client that always has work. It has `streams` sequences, or a prompt of `prompt` tokens for each new token."""

    streams: int
    prompt: int = 0
    done: float = 0.0
    last: float = 0.0
    pause: float = 0.0


class Machine:
    """Steps of clients on a machine whose steps take `fixed + each * work` seconds, more or less."""

    def __init__(self, fixed, each, noise=0.0, room=256):
        self.fixed, self.each, self.room = fixed, each, room
        self.dice, self.noise = random.Random(1), noise
        self.now = self.steps = self.partial = 0
        self.longest = 0.0
        self.clients, self.arrived = {}, 0
        self.shares = TimeShares(STEP_S, lambda: self.now)

    def client(self, name):
        self.arrived += 1
        return ClientQueue(name, self.arrived, 0.0)

    def step(self, loads):
        """Computes a step of loads by name, which share the room for prompts."""
        self.clients = {name: self.clients.get(name) or self.client(name) for name in loads}
        by_client = {self.clients[name]: load for name, load in loads.items()}
        left_out = self.shares.leave_out(
            {client: float(load.streams) for client, load in by_client.items()},
            {client: float(load.prompt) for client, load in by_client.items() if load.prompt},
            self.room,
        )
        part = {client: load for client, load in by_client.items() if client not in left_out}
        prompts = sum(load.prompt for load in part.values())
        fitting = min(1.0, self.room / prompts) if prompts else 1.0
        work = {client: load.streams + fitting * load.prompt for client, load in part.items()}
        seconds = (self.fixed + self.each * sum(work.values())) * self.dice.uniform(1 - self.noise, 1 + self.noise)
        self.now += seconds
        if self.shares.active:
            self.shares.charge(work, seconds, everyone=not left_out)
        for client, load in part.items():
            load.done += work[client]
            load.pause, load.last = max(load.pause, self.now - load.last), self.now
        self.steps += 1
        self.partial += bool(left_out)
        self.longest = max(self.longest, seconds)

    def run(self, loads, seconds):
        end = self.now + seconds
        for load in loads.values():
            load.last = self.now
        while self.now < end:
            self.step(loads)
        return loads


def random_case(seed):
    dice = random.Random(seed)
    fixed, each = 10 ** dice.uniform(-2.3, -1), 10 ** dice.uniform(-4, -2.3)
    loads = [(dice.choice([1, 1, 2, 8, 30, 120]), dice.choice([0, 0, 0, 500])) for _ in range(dice.randrange(2, 6))]
    return fixed, each, loads


@pytest.mark.parametrize("seed", range(12))
def test_no_client_slows_another_by_more_than_twice_its_share_nor_makes_it_pause(seed):
    fixed, each, loads = random_case(seed)
    machine = Machine(fixed, each, noise=0.1)
    seconds = 20 + 40 * (fixed + each * sum(sum(load) for load in loads))
    together = machine.run({str(i): Load(*load) for i, load in enumerate(loads)}, seconds)
    longest_pause = max(PAUSE * STEP_S, machine.longest) + 2 * machine.longest
    for load in together.values():
        alone = Machine(fixed, each).run({"": Load(load.streams, load.prompt)}, seconds)[""].done
        assert load.done >= 0.85 * alone / (2 * len(loads))
        assert load.pause <= longest_pause


@pytest.mark.parametrize("seed", range(6))
def test_two_clients_have_half_of_the_time_each_unless_they_share_steps(seed):
    fixed, each, ((first, _), (second, _), *_) = random_case(seed)
    machine = Machine(fixed, each)
    spent = {}
    charge = machine.shares.charge

    def charged(work, seconds, **more):
        for client, part in work.items():
            spent[client.name] = spent.get(client.name, 0.0) + seconds * part / sum(work.values())
        charge(work, seconds, **more)

    machine.shares.charge = charged
    machine.run({"a": Load(first), "b": Load(second)}, 60)
    small, large = sorted([first, second])
    ratio = (fixed + each * small) / (fixed + each * (small + large))
    if ratio < 0.45:
        assert min(spent.values()) >= 0.5 * machine.now - PAUSE * STEP_S - machine.longest
    elif ratio > 0.55:
        assert machine.partial <= 2 + machine.steps // 50


@pytest.mark.parametrize("clients", [2, 3, 8])
def test_clients_with_equal_loads_share_all_steps(clients):
    machine = Machine(0.014, 0.0014, noise=0.1)
    machine.run({str(i): Load(4) for i in range(clients)}, 30)
    assert not machine.partial


def test_nobody_is_left_out_where_a_step_takes_as_long_without_him():
    machine = Machine(0.1, 0.0001)
    machine.run({"a": Load(120), "b": Load(1)}, 60)
    assert machine.partial <= machine.steps // 50


@pytest.mark.parametrize("others", [1, 2])
def test_a_client_that_comes_again_and_again_gets_no_more_than_its_share(others):
    """Each of its requests consists of a prompt that takes longer than a step of the other clients."""
    machine = Machine(0.014, 0.0014)
    present, returning = {str(i): Load(30) for i in range(others)}, Load(0, prompt=256)
    for _ in range(100):
        machine.clients.pop("returning", None)
        before = returning.done
        while returning.done == before:
            machine.step({**present, "returning": returning})
        machine.step(present)
    assert 0.0014 * returning.done <= machine.now / (1 + others)


def test_a_step_that_is_longer_than_a_pause_is_made_up_for():
    machine = Machine(0.14, 0.014)
    loads = machine.run({"large": Load(120), "small": Load(1)}, 100)
    assert 0.154 * loads["small"].done >= 0.45 * 100


def test_a_short_step_is_tried_though_all_before_were_of_about_the_same_size():
    shares, large, small = TimeShares(STEP_S, lambda: 0.0), ClientQueue("large", 1, 0.0), ClientQueue("small", 2, 0.0)
    for number in range(200):
        work = 119.0 + number % 2
        shares.charge({large: work, small: 1.0}, 0.18 - 0.01 * (number % 2), everyone=True)
    assert shares.leave_out({large: 120.0, small: 1.0}, {}, 256) == {large}


def test_clients_with_about_equal_loads_keep_the_throughput_of_batching():
    machine = Machine(0.014, 0.0014)
    loads = machine.run({str(i): Load(20 + i) for i in range(8)}, 60)
    assert sum(load.done for load in loads.values()) >= 0.98 * 60 / (0.014 + 0.0014 * 188) * 188


def test_a_client_that_was_ahead_of_many_has_its_half_when_they_have_left():
    machine = Machine(0.014, 0.0014)
    large, small = Load(60), Load(1)
    machine.run({"large": large, "small": small, **{str(i): Load(1) for i in range(40)}}, 30)
    before = large.done
    machine.run({"large": large, "small": small}, 5)
    assert 0.0014 * (large.done - before) >= 0.4 * 5


def test_a_client_saves_up_no_more_than_a_pause():
    machine = Machine(0.014, 0.0014)
    large, small = Load(120), Load(1)
    machine.run({"large": large}, 100)
    arrival, before = machine.now, large.done
    while large.done == before:
        machine.step({"large": large, "small": small})
    assert machine.now - arrival <= PAUSE * STEP_S + 2 * machine.longest
    assert small.done > 10


def test_what_absent_clients_had_is_forgotten():
    machine = Machine(0.014, 0.0014)
    for number in range(200):
        machine.run({"large": Load(30), str(number): Load(2)}, 0.2)
    assert len(machine.shares._times) <= 4


# --- the engine


class TimedNetwork(FakeNetwork):
    """A network that always says the same, and whose steps take time by its own clock."""

    now = 0.0

    def start(self, prompts):
        self.now += 0.014 + 0.0014 * len(self._input("input_ids"))
        self.lines = LINE[None].repeat(len(self._input(LOGITS_INPUT)), 0)


def timed(kind=TimedNetwork, **options):
    network = kind(16)
    sizes = {
        "blocks": 400,
        "block_size": 16,
        "context": 400,
        "step_tokens": 256,
        "max_sequences": 64,
        "max_running": 64,
    }
    return Driver(network, clock=lambda: network.now, **sizes, **options)


def latency(made, **asked):
    """Returns the time of a request of client b on the network's clock."""
    began = made.network.now
    request = made.add([2] * 20, Params(max_tokens=16, client="b", **asked))
    for _ in range(1000):
        made.step()
        if request.status == "finished":
            break
    return made.network.now - began


def beside(made, client, count=40, **asked):
    for i in range(count):
        made.add([3 + i] * 20, Params(max_tokens=300, client=client, **asked))
    while made.scheduler.waiting or made.scheduler.batch.prefilling:
        made.step()


def test_a_short_request_beside_the_many_of_another_client_takes_little_longer_than_alone():
    alone = latency(timed())
    made = timed()
    beside(made, "a")
    assert latency(made) < 2 * alone
    same = timed()
    beside(same, "b")
    assert latency(same) > 4 * alone


class SlowSampler:
    """A sampler chain that changes nothing, and takes 10 ms of the network's clock."""

    def __init__(self, network):
        self._network = network

    def apply(self, row):
        self._network.now += 0.01

    def accept(self, token):
        pass


class FlatNetwork(TimedNetwork):
    """A network whose steps all take as long."""

    def start(self, prompts):
        now = self.now
        super().start(prompts)
        self.now = now + 0.1


def test_the_time_of_sampling_is_divided_between_clients_too():
    """All steps of the network take 0.1 s, and those with the samplers of another client 0.4 s more."""
    alone = latency(timed(kind=FlatNetwork))
    made = timed(kind=FlatNetwork, new_sampler_chain=lambda sequence: SlowSampler(made.network))
    beside(made, "a", sampler_chain={})
    assert latency(made) < 2 * alone


def test_nobody_is_left_out_where_priorities_count_across_clients():
    made = timed(priority_across_clients=True)
    beside(made, "a")
    assert latency(made) > 4 * latency(timed())


def test_a_clients_prompt_does_not_wait_for_those_of_another():
    made = timed()
    for i in range(40):
        made.add([3 + i] * 200, Params(max_tokens=2, client="a"))
    made.step()
    assert latency(made, priority=1) < 2 * latency(timed()) + 0.4


def test_a_client_alone_costs_nothing():
    made = timed()
    made.scheduler.time_shares.leave_out = made.scheduler.time_shares.charge = None
    beside(made, "a", 4)


def test_a_step_computes_all_clients_if_the_others_cannot_be_computed():
    made = timed()
    requests = [made.add([3 + i] * 20, Params(max_tokens=5, client=client)) for i, client in enumerate("ab")]
    made.scheduler.time_shares.leave_out = lambda decoding, *_: frozenset(decoding)
    for _ in range(20):
        made.step()
    assert [request.status for request in requests] == ["finished"] * 2


def test_sequences_that_are_left_out_are_not_preempted_before_they_have_new_tokens():
    made = timed(priority_across_clients=False)
    made.waiting.slots = 4
    beside(made, "a", 3)
    beside(made, "b", 1)
    running = {s.request.id for s in made.scheduler.running if s.client.name == "a"}
    made.scheduler.time_shares.leave_out = lambda decoding, *_: frozenset(c for c in decoding if c.name == "a")
    made.add([9] * 20, Params(max_tokens=300, client="b"))
    for _ in range(100):
        made.step()
    assert running == {s.request.id for s in made.scheduler.running if s.client.name == "a"}


@pytest.mark.parametrize(
    "asked", [{}, {"num_assistant_tokens": 4}, {"beams": 2}, {"n": 2}, {"prompt_logprobs": True}], ids=str
)
def test_no_sequence_of_a_client_that_is_left_out_is_computed(asked):
    made = timed()
    made.add([3, 4] * 10, Params(max_tokens=200, client="a", **asked))
    made.add([3, 4] * 10, Params(max_tokens=200, client="b", **asked))
    for _ in range(12):
        made.step()
    made.scheduler.time_shares.leave_out = lambda decoding, *_: frozenset(c for c in decoding if c.name == "a")
    made.add([5, 6] * 100, Params(max_tokens=200, client="a"))
    for _ in range(20):
        made.step()
        step = made.runner.scheduled
        assert {s.client.name for s in [*step.decoding, *(chunk.sequence for chunk in step.chunks)]} == {"b"}


def test_clients_are_charged_for_the_contexts_of_their_sequences():
    made = timed()
    for client, length in [("a", 200), ("b", 20)]:
        made.add([3] * length, Params(max_tokens=199, client=client))
    for _ in range(100):
        made.step()
    work = {client.name: done for client, done in made.scheduler._decoding.items()}
    [a, b] = sorted(made.scheduler.batch.decoding, key=lambda one: one.client.name)
    assert work["a"] - work["b"] == pytest.approx((len(a.ids) - len(b.ids)) / made.scheduler.chunk_sizes.reach)
