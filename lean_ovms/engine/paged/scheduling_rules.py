"""The rules by which the scheduler decides, each without its state.

A sequence is preempted, and continues later, in two cases: the KV cache would overflow in the next step
(`over_budget`), or a client or request with less than its share waits while another has more (`for_another`). In the
second case only sequences that have run for a while are chosen, so that each one makes progress before it is preempted
again. FaultIsolation finds the request at fault after a step that raised an error, `is_too_costly` limits the time
that grammars and samplers take in a step, and ChunkSizes the time that parts of prompts take. TimeShares divides the
time of steps between clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Seq

from ..generation.fair_queue import ClientQueue, SequenceGroup
from .sequence import Sequence

COSTLY_S = 0.1
"""The most CPU seconds per step for masks and samplers of sequences with similar costs; a single one may exceed it."""
ALIKE = 4
"""Two costs are similar if they differ by less than this factor."""
FREE_S = 0.001
"""The CPU seconds up to which the cost of a token is ignored."""


def is_too_costly(sequence: Sequence, running: Seq[Sequence]) -> bool:
    """Returns whether a sequence with a grammar or a sampler chain has to wait, as a step would take too long.

    All sequences of a step wait for the masks and samplers of each. So sequences with similar costs together get at
    most COSTLY_S per step, and the others wait; cheaper ones do not wait for costly ones.
    """
    cost = sequence.request.cost
    if cost is None or cost.token_s <= FREE_S:
        return False
    others: list[float] = [s.request.cost.token_s for s in running if s.request.cost is not None]
    alike = sum(token_s for token_s in others if cost.token_s / ALIKE < token_s < cost.token_s * ALIKE)
    return alike > 0 and alike + cost.token_s > COSTLY_S


MAX_RETRIES = 3
"""The number of failed steps that a sequence survives. One that takes part in more is probably at fault."""


class FaultIsolation(set[Sequence]):
    """The sequences that may have caused a failed step. They are run one at a time to find the one at fault.

    A sequence is removed once it has output, or was cancelled.
    """

    def pick(self, interrupted: Seq[Sequence]) -> Sequence | None:
        """Returns which interrupted sequence to end after a failed step; None if all suspects should be tried again.

        Suspects are the sequences without output since they were last started. If there are several, each is tried
        without the others. A single one is tried once more if other sequences ran in the step, since one of those may
        have reached the point where it fails.
        """
        without_output = [s for s in interrupted if not s.has_output]
        suspects = without_output or interrupted
        at_fault: Sequence | None = None
        if len(without_output) == 1 and (without_output[0].retries or len(interrupted) == 1):
            at_fault = without_output[0]
        elif tried := [s for s in suspects if s.retries >= MAX_RETRIES]:
            at_fault = tried[-1]
        else:
            self.update(suspects)
        for sequence in interrupted:
            sequence.retries += 1
        return at_fault

    def may_start(self, sequence: Sequence, running: Seq[Sequence]) -> bool:
        """Returns whether a sequence may start.

        A suspect may start if all running sequences have output. Other interrupted sequences may resume, and new ones
        wait.
        """
        if not self:
            return True
        if any(s in self for s in running):
            return False
        if sequence in self:
            return all(s.has_output for s in running)
        return sequence.retries > 0

    def order(self, interrupted: Seq[Sequence]) -> list[Sequence]:
        """Returns the interrupted sequences in the order in which they resume, suspects last."""
        return sorted(interrupted, key=lambda sequence: sequence in self)


MIN_RUN_TOKENS = 16
"""The number of new tokens after which a sequence's slot may be given to another client. Computing it again is cheap,
since most of it is in the prefix cache."""


def over_budget(
    running: Seq[Sequence], clients: Collection[ClientQueue], blocks_of: Callable[[ClientQueue], int]
) -> Sequence:
    """Returns the sequence to preempt when the KV cache overflows, or any beam of the search to preempt.

    It is the newest of those with the least urgent priority, so the most urgent and oldest one makes progress. If there
    are several clients, it belongs to the one with the most blocks, if that has others than the oldest sequence or
    search, and the oldest one makes progress: it is never chosen unless it is alone.

    Args:
        running: The sequences that may be preempted, oldest first; the beams of a search are equally old.
        clients: The clients between which the blocks are divided; none if they are divided by priority alone.
        blocks_of: Returns the number of blocks that a client has.
    """
    movable = list(reversed(running))
    if len(clients) > 1:
        most = max(clients, key=blocks_of)
        movable = [s for s in movable if s.arrival != running[0].arrival] or movable
        movable = [s for s in movable if s.client is most] or movable
    return max(movable, key=lambda s: s.request.priority)


def for_another(
    running: Seq[Sequence], giver: ClientQueue | SequenceGroup, *, least_priority: int | None = None
) -> Sequence | None:
    """Returns a sequence to preempt so that another client or request can run; None if none can be at the moment.

    Args:
        running: The running sequences, oldest first.
        giver: The client or the request that must give up a slot.
        least_priority: Only sequences with this priority value or a higher, less urgent one are chosen; None for any.
    """
    candidates = [
        s
        for s in reversed(running)
        if giver in (s.group, s.client)
        and (s.has_output and len(s.ids) - s.output_since >= MIN_RUN_TOKENS and not s.beams)
        and (least_priority is None or s.request.priority >= least_priority)
    ]
    if not candidates:
        return None
    return min(candidates, key=lambda s: (-s.request.priority, -s.group.running))


FIRST_REACH = 1024
"""The ratio b / d of ChunkSizes, in tokens of context, that is assumed until steps have been measured."""
NEAR = 512
"""A step whose tokens have a mean context below this number of tokens updates b, any other one d."""
RATE = 0.1
"""The weight of a new measurement of b or d in its moving average."""
STEP_S = 0.25
"""The most seconds of a step with more than the least number of tokens, in which running answers pause."""
MOST = 2
"""The factor by which a measurement may exceed the known b or d, or fall below it: other work may have the CPU."""


class ChunkSizes:
    """Chooses how many tokens of a prompt a step computes, depending on their context.

    Each token of a chunk attends to all tokens before it: with the demo model, 256 tokens take 11 ms at the beginning
    of a prompt, and 500 ms after 31,000 others. So the time of a step is about b * tokens + d * attended, where
    `attended` is the sum of the context lengths of its tokens. The ratio b / d is the context length at which attention
    takes as long as everything else: 600 tokens for the demo model, and 1,000 for one with 195M parameters. It depends
    on the network, its attention windows and the machine, so it is learned from steps. Work is time in units of b, the
    time of a token without context.

    The more tokens a step has, the less time each takes, but running answers pause for the whole step. So a step has as
    many tokens as take `step_s` seconds without context, within limits.
    """

    def __init__(self, least: int, block_size: int, most: int = 0, *, step_s: float = STEP_S) -> None:
        """Assumes FIRST_REACH for b / d until steps have been measured.

        Args:
            least: The number of tokens that any step may have, however long it takes.
            block_size: The number of tokens in a KV block.
            most: The most tokens that a quick step may have; 0 for no more than `least`.
            step_s: The most seconds that a step with more than `least` tokens may take, by the clock with which steps
                are measured.
        """
        self.least = least
        self._most = max(least, most)
        self._block_size = block_size
        self._step_s = step_s
        self.forget()

    def forget(self) -> None:
        """Discards the measurements, for instance those of a network's first steps, which take longer."""
        self.reach = float(FIRST_REACH)
        self._linear = self._attention = 0.0  # b, d; 0: not known
        self.step_tokens = self.least
        """The most tokens of the next step."""

    def work(self, start: int, tokens: int) -> int:
        """Returns the work for `tokens` tokens after `start` others."""
        return int(tokens * (1 + start / self.reach))

    def part(self, start: int, left: int, budget: int) -> tuple[int, int]:
        """Returns how many of a prompt's `left` tokens a step with this budget of work computes, and their work.

        Args:
            start: The number of tokens before them.
            left: The number of tokens that are not computed yet.
            budget: The work that the step has left.
        """
        work = self.work(start, left)
        if work <= budget:
            return left, work
        return min(left, budget, self.tokens(start, budget)), budget  # a block may take more than all of it

    def tokens(self, start: int, work: int) -> int:
        """Returns how many tokens after `start` others take about this much work, at least up to the end of a block.

        Chunks end at block boundaries, so that prompts with a common prefix can share the blocks. Only the first chunk
        of a prompt fills its step.
        """
        most = max(self._block_size, int(work / (1 + start / self.reach)))
        return most - (start + most) % self._block_size if start else most

    def learn(self, tokens: int, attended: int, seconds: float) -> None:
        """Updates b or d, the times of a token without and with context, from the time of a step with prompts.

        Small steps are ignored, since a part of their time does not depend on the size. Different steps update b and d,
        each using the known value of the other, so that neither drifts while only the other is updated.

        Args:
            tokens: The number of tokens in the step.
            attended: The sum of their context lengths.
            seconds: The duration of the step.
        """
        if 2 * (tokens + attended / self.reach) < self.least or seconds <= 0:
            return
        if not self._linear:
            self._linear = seconds / (tokens + attended / FIRST_REACH)
            self._attention = self._linear / FIRST_REACH
        if attended < NEAR * tokens:
            self._linear = _closer(self._linear, (seconds - self._attention * attended) / tokens)
        else:
            self._attention = _closer(self._attention, (seconds - self._linear * tokens) / attended)
        self.reach = self._linear / self._attention
        self.step_tokens = max(self.least, min(self._most, int(self._step_s / self._linear)))


def _closer(known: float, measured: float) -> float:
    return known + RATE * (min(MOST * known, max(known / MOST, measured)) - known)


AHEAD = 0.2
"""The lead in time, as a part of a step's STEP_S, from which a client may be left out. Smaller ones even out."""
PAUSE = 2.0
"""The longest time without a step of all clients, as a multiple of STEP_S: so long a sequence may be left out."""
FADING = 0.98
"""The factor by which the weight of a measured step falls with each further one."""
PRIOR = 0.05
"""The weight of the assumption that a step without work takes no time, in measured steps."""


class TimeShares:
    """Divides the time of steps between clients.

    A step takes the time that all its sequences take together, so a client's single sequence would be as slow as the
    hundred sequences of another. Therefore each client is charged for its part of a step's time, which is its part of
    the work in ChunkSizes' units. A step leaves out the clients that are ahead of the one with the least time, and the
    others have short steps of their own until they have caught up.

    Batching saves time, so clients are left out only if the step then takes at most half the time. No pause is longer
    than PAUSE, or than the last step of all clients if that took longer: a client's lead never exceeds this either,
    which is all that another one can save up by being idle.

    The time of a step is predicted as `fixed + slope * work`, a weighted least squares fit to the latest steps. As long
    as these are alike, PRIOR makes time proportional to work, so that a short step is tried. The steps of SmolLM2-135M
    with 1 to 120 sequences differ from such a line by up to a third.
    """

    def __init__(self, step_s: float, clock: Callable[[], float]) -> None:
        """Creates the object, with nothing charged.

        Args:
            step_s: The seconds of the clock in STEP_S; a clock that adds up threads counts more than one each second.
            clock: The clock with which steps are measured, in seconds.
        """
        self.active = False
        """Whether the next step must be charged, since several clients have running sequences."""
        self._step_s = step_s
        self._clock = clock
        self._times: dict[str, float] = {}  # by client: those running, and absent ones that were ahead
        self._least = 0.0  # of the clients before the last step; a new one begins with it, since it waited for the step
        self._left_at = 0.0  # when the clients became fewer than two
        self._paused = 0.0  # seconds of the steps since the last one of all clients
        self._longest = 0.0  # seconds of the last step of all clients
        self._fit = [0.0] * 5  # weighted sums over steps: 1, work, its square, seconds, work * seconds

    def leave_out(
        self, decoding: Mapping[ClientQueue, float], prompts: Mapping[ClientQueue, float], room: float
    ) -> frozenset[ClientQueue]:
        """Returns the clients that the next step leaves out.

        Args:
            decoding: The work of the next step for each client's decoding sequences; 0 if it has only prompts.
            prompts: The work that is left of each client's prompts.
            room: The most work for prompts in a step.
        """
        if len(decoding) < 2:
            self._left_at = self._clock() if self.active else self._left_at
            self.active = False
            return frozenset()
        times = self._times
        for client in decoding:
            times.setdefault(client.name, self._least)
        if not self.active:  # the oldest was alone
            times[min(decoding, key=lambda client: client.serial).name] += self._clock() - self._left_at
            self.active, self._paused = True, 0.0
        longest_pause = max(PAUSE * self._step_s, self._longest)
        least = self._least = min(times[client.name] for client in decoding)
        present = {client.name for client in decoding}
        self._times = times = {
            name: min(seconds, least + longest_pause)
            for name, seconds in times.items()
            if seconds > least or name in present
        }
        ahead = frozenset(c for c in decoding if times[c.name] > least + AHEAD * self._step_s)
        if not ahead or self._paused >= longest_pause:
            return frozenset()
        whole = sum(decoding.values()) + min(sum(prompts.values()), room)
        part = sum(work for client, work in decoding.items() if client not in ahead)
        part += min(sum(work for client, work in prompts.items() if client not in ahead), room)
        return ahead if 2 * self._predict(part) <= self._predict(whole) else frozenset()

    def charge(self, work: Mapping[ClientQueue, float], seconds: float, *, everyone: bool) -> None:
        """Charges the clients for a step.

        Args:
            work: The work of each client in the step.
            seconds: The duration of the step.
            everyone: Whether the step left out no client.
        """
        whole = sum(work.values())
        for client, part in work.items():
            self._times[client.name] = self._times.get(client.name, self._least) + seconds * part / whole
        self._paused = 0.0 if everyone else self._paused + seconds
        self._longest = seconds if everyone else self._longest
        measured = 1.0, whole, whole * whole, seconds, whole * seconds
        self._fit = [FADING * total + new for total, new in zip(self._fit, measured, strict=True)]

    def _predict(self, work: float) -> float:
        """Returns the time of a step with this work, in seconds; in an unknown unit until steps have been measured."""
        count, sum_work, squares, sum_seconds, products = self._fit
        count += PRIOR
        spread = squares * count - sum_work * sum_work
        if spread <= 0:
            return work
        slope = max(0.0, products * count - sum_work * sum_seconds) / spread
        return max(0.0, (sum_seconds - slope * sum_work) / count) + slope * work
