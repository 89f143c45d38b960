"""Drafts tokens with a network: samples a draft token of each sequence, computes it, and goes on.

Draft tokens are sampled as the main model's are, with the same parameters, grammar and random numbers, so that the same
token is likely to come out. A sequence whose draft tokens are often wrong gets shorter drafts, and at last few.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....engine.errors import last_line
from ....engine.paged.block_manager import BlockManager, BlockTables
from ....engine.paged.model_inputs import Chunk, ModelInputs
from ....engine.paged.network import TREE_MASK, Network
from ....engine.paged.parts import Prepare
from ....engine.paged.sampling.logprobs import log_sum_exp
from ....engine.paged.sampling.reductions import Logits
from ....engine.paged.sampling.sampler import SamplingBatch, sample
from ....engine.paged.sequence import Sequence, forked
from .draft_length import DraftLength

log = logging.getLogger(__name__)

NO_ROWS = np.zeros(0, np.int64)


@dataclass(slots=True)
class Draft:
    """A sequence that gets draft tokens, as the cache of a drafter has it."""

    sequence: Sequence
    """The sequence of the main model."""
    text: Sequence
    """A copy of the sequence with the draft tokens behind it, and with the row, the blocks and the chain of the
    drafter's cache."""
    length: DraftLength
    """The length of the next draft, which depends on how many of the last draft tokens were accepted."""
    base: int = 0
    """How many tokens of the copy come before the draft tokens."""
    most: int = 0
    """The most tokens to draft in this step."""
    branching: bool = False
    """Whether the first draft token gets an alternative: the likeliest other token in its place."""
    alternative: int | None = None
    """The alternative of the first draft token; None if it has none."""

    @property
    def open(self) -> bool:
        """Whether the sequence may get more draft tokens in this step."""
        return len(self.sequence.draft_tokens) < self.most


class Drafter:
    """A paged.parts.Proposer that runs a network.

    A drafter whose network fails is not used any more. No completion depends on it.
    """

    name: str
    """The name of this kind of drafter, for the log."""

    def __init__(
        self,
        network: Network,
        inputs: ModelInputs,
        blocks: BlockManager,
        tables: BlockTables,
        *,
        context: int,
        main: Network,
        prepare: Prepare,
    ) -> None:
        """Begins without any draft.

        Args:
            network: The network that computes draft tokens.
            inputs: Writes the inputs of this network.
            blocks: The blocks of the cache that the network uses.
            tables: The rows of this cache, with the blocks of each sequence.
            context: The most tokens of a sequence with its draft tokens.
            main: The network of the main model.
            prepare: Computes the masks of the grammars of a step.
        """
        self.blocks = blocks
        self.steps = 0
        """The forward passes of its network since the start."""
        self._network = network
        self._inputs = inputs
        self._tables = tables
        self._context = context
        self._width = main.vocab_size
        self._trees = TREE_MASK in main.inputs and not main.hybrid  # a state has seen all tokens before
        self._prepare = prepare
        self._drafts: dict[Sequence, Draft] = {}
        self._failed = False

    # --- paged.parts.Proposer

    def computed(self, decoding: int, chunks: list[Chunk]) -> None:
        """Implements Proposer.computed: a drafter with a network of its own needs nothing of a step."""

    def propose(self, wanted: list[tuple[Sequence, int]]) -> None:
        for sequence, _ in wanted:
            sequence.draft_tokens, sequence.alternatives = [], []
        if self._failed:
            return
        try:
            self._propose(wanted)
        except Exception as error:  # of openvino, whatever it raises
            log.error("the %s failed and is not used any more: %s", self.name, last_line(error))
            self._failed = True
            for sequence in list(self._drafts):
                self.leave(sequence)
            for sequence, _ in wanted:
                sequence.draft_tokens, sequence.alternatives = [], []

    def leave(self, sequence: Sequence) -> None:
        draft = self._drafts.pop(sequence, None)
        if draft is not None:
            self._release(draft)

    # --- one proposal

    @abstractmethod
    def _begin(self, sequence: Sequence) -> Draft | None:
        """Returns the draft of a sequence that had none; None if there is no room for it."""

    @abstractmethod
    def _roll_back(self, draft: Draft) -> None:
        """Keeps what the cache has of the sequence's own tokens, and of draft tokens up to the first wrong one."""

    @abstractmethod
    def _release(self, draft: Draft) -> None:
        """Frees what a draft has, whose sequence is over or preempted."""

    @abstractmethod
    def _catch_up(self, drafts: list[Draft]) -> tuple[list[Draft], Logits]:
        """Computes the tokens that the cache lacks of these sequences, within one step.

        Returns the drafts that are complete now, with the logits of their last tokens.
        """

    @abstractmethod
    def _decode(self, drafting: list[Draft], changed: bool) -> Logits:
        """Computes the newest token of each draft, and returns the logits.

        Args:
            drafting: The drafts.
            changed: Whether these are other drafts than before.
        """

    def _propose(self, wanted: list[tuple[Sequence, int]]) -> None:
        alone = len(wanted) == 1
        resumed = (self._resume(sequence, most, alone=alone) for sequence, most in wanted)
        drafts = [draft for draft in resumed if draft is not None]
        drafting, logits = self._catch_up(drafts)
        batch = None
        while drafting:
            if batch is None:
                batch = SamplingBatch([draft.text for draft in drafting], details=False)
            going_on = self._sample(drafting, logits, batch)
            if not going_on:
                return
            changed = len(going_on) < len(drafting)
            if changed:
                drafting, batch = going_on, None
            logits = self._decode(drafting, changed)

    def _resume(self, sequence: Sequence, most: int, *, alone: bool) -> Draft | None:
        """Brings the draft of a sequence up to date with the tokens that were accepted.

        Args:
            sequence: The sequence.
            most: The most draft tokens that it may get in this step.
            alone: Whether no other sequence gets draft tokens; only then the first draft token may get an alternative.
                With two sequences, another row costs as much time as it gains (`python -m bench drafts`).

        Returns:
            The draft; None if the sequence gets no draft tokens in this step.
        """
        draft, room = self._drafts.get(sequence), min(most, self._context - len(sequence.ids))
        if room <= 0:
            return None
        if draft is None:
            draft = self._begin(sequence)
            if draft is None:
                return None
            self._drafts[sequence] = draft
        else:
            if draft.alternative in sequence.ids[draft.base : draft.base + 1]:
                # As if one token of a longer draft had been right: drafts neither pause nor grow.
                draft.length.learn(drafted=len(draft.text.ids) - draft.base + 1, accepted=1)
            else:
                draft.length.compare(draft.text.ids[draft.base :], sequence.ids[draft.base :])
            self._roll_back(draft)
        draft.alternative, most = None, draft.length.next(room)
        if not most:
            del draft.text.ids[draft.base :]  # nothing is to be learned from the last draft tokens again
            return None
        before, text = draft.text, forked(sequence, sequence.index)
        text.row, text.blocks, text.chain = before.row, before.blocks, before.chain
        draft.text, draft.base, draft.most = text, len(text.ids), most
        draft.branching = alone and self._trees and most < room
        return draft

    def _sample(self, drafting: list[Draft], logits: Logits, batch: SamplingBatch) -> list[Draft]:
        """Samples one more draft token for each draft; returns the drafts that go on."""
        self._prepare([draft.text.matcher for draft in drafting if draft.text.matcher is not None])
        unsure = _Confidence(drafting, logits)
        sampled = sample(logits, batch)
        tokens = sampled.tokens.tolist()
        ended = unsure.below(sampled.tokens) | sampled.failed.keys()
        for place, (draft, token) in enumerate(zip(drafting, tokens, strict=True)):
            if place in ended:
                continue
            draft.text.ids.append(token)
            draft.sequence.draft_tokens.append(token)
            if draft.branching and len(draft.sequence.draft_tokens) == 1:
                logits[place, token] = -np.inf
                draft.alternative = int(logits[place].argmax())
                draft.sequence.alternatives.append(draft.alternative)
            if token in draft.text.stops or not draft.open:
                ended.add(place)
        for place in batch.edited:
            if place not in ended and drafting[place].text.follow(tokens[place]):
                ended.add(place)
        return [draft for place, draft in enumerate(drafting) if place not in ended] if ended else drafting

    def _infer(self, prompts: bool) -> Logits:
        """Runs the network; returns its logits, as wide as the main model's, which may be padded differently."""
        self.steps += 1
        logits = self._network.infer(prompts)
        missing = self._width - logits.shape[1]
        if missing > 0:
            return np.pad(logits, ((0, 0), (0, missing)), constant_values=-np.inf)
        return np.ascontiguousarray(logits[:, : self._width]) if missing else logits


class _Confidence:
    """The drafter's own probabilities, for requests whose drafts end where these are low."""

    def __init__(self, drafting: list[Draft], logits: Logits) -> None:
        """Computes how sure the network is of its tokens.

        Args:
            drafting: The drafts.
            logits: The logits [drafts, vocabulary], which nothing has changed yet.
        """
        self._least = {i: d.text.params.confidence for i, d in enumerate(drafting) if d.text.params.confidence > 0}
        self._logits = logits[list(self._least)] if self._least else logits[:0]
        self._sums = log_sum_exp(self._logits) if self._least else np.zeros(0)

    def below(self, tokens: NDArray[np.int64]) -> set[int]:
        """Returns the places whose tokens are less likely than their requests permit."""
        found = set()
        for number, (place, least) in enumerate(self._least.items()):
            if np.exp(self._logits[number, tokens[place]] - self._sums[number]) < least:
                found.add(place)
        return found
