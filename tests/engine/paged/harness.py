"""The paged engine without tasks and pipes: requests are added with their parameters, and read back one by one."""

import random
from collections import defaultdict
from dataclasses import dataclass, field, fields, replace
from functools import partial

from lean_ovms.engine.generation.fair_queue import GenerationRequest
from lean_ovms.engine.paged.engine import Engine
from lean_ovms.engine.paged.parts import EngineParts, EngineSizes, NoGrammars, one_by_one
from lean_ovms.engine.paged.sampling.logprobs import TokenLogprobs
from lean_ovms.engine.paged.sequence import Prepared
from lean_ovms.engine.protocol import (
    ABSENT,
    DetailedTokens,
    Drafted,
    Failed,
    Prefilled,
    PrefixCacheReset,
    PromptLogprobs,
    ResetPrefixCache,
    Tokens,
)
from lean_ovms.features.beam_search.child.search import BeamSearch
from lean_ovms.features.disk_cache.records import BlocksOnDisk
from lean_ovms.features.drafting.child.draft_source import BudgetedDrafts
from lean_ovms.features.drafting.child.head import Head
from lean_ovms.types import SamplingParams


@dataclass(slots=True, kw_only=True)
class Params(SamplingParams):
    """Sampling parameters, greedy by default, together with those of a request. Bad words are lists of ids."""

    max_tokens: int = 16
    temperature: float = 0.0
    max_ngram_size: int = 3
    seed: int = 0
    stops: frozenset = frozenset()
    priority: int = 0
    client: str = ""
    adapter: object = None

    def request(self, number, prompt, constraint=""):
        """Returns a request for these parameters, with the seeds of its texts."""
        texts = self.beams if self.beams > 1 else self.n
        params = replace(self, n=texts, seeds=tuple(self.seed + index for index in range(texts)))
        return GenerationRequest(
            number,
            params,
            set(range(texts)),
            constraint,
            prompt=list(prompt),
            max_tokens=self.max_tokens,
            stops=self.stops,
            details=True,
            priority=self.priority,
            client=self.client,
            bad_words=self.bad_words,
            native=Prepared(params, self.adapter),
        )


@dataclass(slots=True)
class Output:
    """The new tokens of one text."""

    generated_ids: list = field(default_factory=list)
    generated_log_probs: list = field(default_factory=list)
    details: list = field(default_factory=list)


class Asked:
    """A request to a Driver, and its results."""

    def __init__(self, driver, request):
        self._driver, self._request = driver, request
        self._outputs = defaultdict(Output)
        self._ended = set()
        self.status, self.error = "running", ""
        self.cached = -1
        self.prompt_details = []

    @property
    def sequences(self):
        return self._request.sequences

    @property
    def computed(self):
        first = self.sequences[0]
        return (
            min(first.prompt, int(self._driver.scheduler.tables.computed[first.row]))
            if first.row >= 0
            else first.prompt
        )

    def can_read(self):
        return bool(self._outputs)

    def read(self):
        """Returns what is new, by the number of the text."""
        if not self._outputs:
            raise RuntimeError("there is no output to read")
        found, self._outputs = dict(self._outputs), defaultdict(Output)
        return found

    def cancel(self):
        self.status = "cancelled"
        self._outputs.clear()
        self._driver.cancel(self._request.id, None)

    def take_in(self, record):
        if isinstance(record, Prefilled):
            self.cached = record.cached
            return
        assert self.status == "running", record
        if isinstance(record, Drafted):
            return
        if isinstance(record, Failed):
            kind, self.error = record.error[:2]
            lost = "KV cache" in self.error
            self.status = "lost" if lost else "refused" if kind == "BadRequest" else "failed"
        elif isinstance(record, PromptLogprobs):
            parts = zip(record.logprobs[1:], record.ranks, record.top, strict=True)
            self.prompt_details = [TokenLogprobs(*part) for part in parts]
        elif isinstance(record, Tokens):
            output = self._outputs[record.index] if record.reason != ABSENT else Output()
            output.generated_ids += record.tokens
            output.generated_log_probs += record.logprobs or []
            if isinstance(record, DetailedTokens):
                output.details += [
                    TokenLogprobs(value, 0, top) for value, top in zip(record.logprobs, record.top, strict=True)
                ]
            if record.reason:
                self._ended.add(record.index)
                if len(self._ended) == self._request.sampling.n:
                    self.status = "finished"


class NoSuspects:
    """Tries every failed step again: failures in these tests are random, and no request causes them."""

    def pick(self, interrupted):
        return None

    def order(self, interrupted):
        return interrupted

    def may_start(self, sequence, running):
        return True

    def discard(self, sequence):
        pass

    def __bool__(self):
        return False


class Matchers(NoGrammars):
    """Returns matchers by the numbers of their requests."""

    def __init__(self, found):
        self._found = found

    def matcher(self, sequence):
        return self._found[sequence.request.id].fork()

    def prepare(self, matchers):
        one_by_one(matchers)


def leave_out_at_random(driver, seed):
    """Makes steps leave out random clients, sometimes all that have running sequences."""
    dice = random.Random(seed)
    driver.scheduler.time_shares.leave_out = lambda decoding, *_: frozenset(c for c in decoding if dice.random() < 0.4)


class Driver(Engine):
    """An engine whose requests can be read. `scheduled` has the sequences of the last step, `on_disk` the tier's
    answers."""

    def __init__(self, network, **options):
        self._by_request = {}
        self.on_disk = []
        proposer, of_parts = options.pop("proposer", None), {one.name for one in fields(EngineParts)}
        parts = {name: options.pop(name) for name in [*options] if name in of_parts}
        parts.setdefault("new_search", BeamSearch)
        parts["new_draft_source"] = lambda *_: BudgetedDrafts(proposer)
        if proposer is None and getattr(network, "head", None) is not None:
            head = partial(Head, network.head, network, context=options["context"], prepare=one_by_one)
            parts["new_draft_source"] = lambda *given: BudgetedDrafts(head(*given))
        self.network = network
        grammars = Matchers(self._by_request)
        super().__init__(network, EngineSizes(**options), EngineParts(grammars=grammars, **parts))
        self.scheduler.suspects = NoSuspects()
        self._asked = {}

    @property
    def scheduled(self):
        step = self.runner.scheduled
        return len(step.decoding) + len(step.chunks) if step is not None else 0

    @property
    def steps(self):
        return self.scheduler.steps

    def add(self, tokens, asked, *, matcher=None):
        number = len(self._asked) + 1
        request = asked.request(number, tokens, "a grammar" if matcher else "")
        self._by_request[number] = matcher
        self._asked[number] = Asked(self, request)
        super().add(request)
        return self._asked[number]

    def reset_prefix_cache(self, *, disk):
        self.handle(ResetPrefixCache(1, disk))

    def busy(self):
        return not self.idle

    def start(self):
        """Begins the next step. Returns whether there is one, which `step` will end."""
        if self.runner.running is None:
            self.admit()
            self.runner.start()
        return self.runner.running is not None

    def step(self):
        self.admit()
        super().step()
        records, self.out[:] = list(self.out), []
        for record in records:
            if isinstance(record, (BlocksOnDisk, PrefixCacheReset)):
                self.on_disk.append(record)
            else:
                self._asked[record.id].take_in(record)

    def _recover(self, error):
        if not isinstance(error, RuntimeError):
            raise error  # an error in the engine, not in the network
        super()._recover(error)
