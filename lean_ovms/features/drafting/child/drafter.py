"""Proposes draft tokens with a network: samples a draft token for each sequence, computes it, and so on.

Draft tokens are sampled as those of the main model, with the same parameters, grammar and random numbers, so that they
are likely to be equal. A sequence whose draft tokens are often wrong gets shorter and fewer drafts.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....engine.paged.block_manager import BlockManager, BlockTables
from ....engine.paged.model_inputs import Chunk, ModelInputs
from ....engine.paged.network import TREE_MASK, Network
from ....engine.paged.parts import Prepare
from ....engine.paged.sampling.logprobs import log_sum_exp
from ....engine.paged.sampling.reductions import Logits
from ....engine.paged.sampling.sampler import SamplingBatch, sample
from ....engine.paged.sequence import Sequence, forked
from ....errors import last_line
from .draft_length import DraftLength

log = logging.getLogger(__name__)

NO_ROWS = np.zeros(0, np.int64)


@dataclass(slots=True)
class Draft:
    """A sequence that gets draft tokens, with its state in a drafter."""

    sequence: Sequence
    """The sequence of the main model."""
    text: Sequence
    """A copy of the sequence to which draft tokens are appended, with the row and blocks of the drafter's cache."""
    length: DraftLength
    """The length of the next draft, which depends on how many of the last draft tokens were accepted."""
    base: int = 0
    """The number of tokens of the copy before the draft tokens."""
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
    """Proposes draft tokens with a network. If the network fails, the drafter is no longer used, and requests go on."""

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
        """Keeps the parts; there is no draft yet.

        Args:
            network: The network that computes draft tokens.
            inputs: Writes the input tensors of this network.
            blocks: The blocks of the KV cache that the network uses.
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
        # The state of a hybrid network has seen all earlier tokens, so there cannot be branches.
        self._trees = TREE_MASK in main.inputs and not main.hybrid
        self._prepare = prepare
        self._drafts: dict[Sequence, Draft] = {}
        self._failed = False

    def computed(self, decoding: int, chunks: list[Chunk]) -> None:
        """Does nothing after a step of the main model, since a network of its own does not need the step's results."""

    def propose(self, wanted: list[tuple[Sequence, int]]) -> None:
        for sequence, _ in wanted:
            sequence.draft_tokens, sequence.alternatives = [], []
        if self._failed:
            return
        try:
            self._propose(wanted)
        except Exception as error:  # of openvino, whatever it raises
            log.error("the %s failed and is no longer used: %s", self.name, last_line(error))
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
        """Begins the draft of a sequence. Returns None if there is no room for it."""

    @abstractmethod
    def _roll_back(self, draft: Draft) -> None:
        """Keeps what the cache has of the sequence's tokens, including draft tokens up to the first wrong one."""

    @abstractmethod
    def _release(self, draft: Draft) -> None:
        """Frees the row and the blocks of a draft whose sequence has ended or is preempted."""

    @abstractmethod
    def _catch_up(self, drafts: list[Draft]) -> tuple[list[Draft], Logits]:
        """Computes the tokens of sequences that the cache lacks, within one step.

        Returns the drafts that are complete now, with the logits of their last tokens.
        """

    @abstractmethod
    def _decode(self, drafting: list[Draft], changed: bool) -> Logits:
        """Computes the newest token of each draft, and returns the logits.

        If `changed`, the drafts are not those of the call before.
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
                # Counts as if one token of a longer draft had been accepted, so that drafts neither pause nor grow.
                draft.length.learn(drafted=len(draft.text.ids) - draft.base + 1, accepted=1)
            else:
                draft.length.compare(draft.text.ids[draft.base :], sequence.ids[draft.base :])
            self._roll_back(draft)
        draft.alternative, most = None, draft.length.next(room)
        if not most:
            del draft.text.ids[draft.base :]  # so that the last draft is not learned from again
            return None
        before, text = draft.text, forked(sequence, sequence.index)
        text.row, text.blocks, text.chain = before.row, before.blocks, before.chain
        draft.text, draft.base, draft.most = text, len(text.ids), most
        draft.branching = alone and self._trees and most < room
        return draft

    def _sample(self, drafting: list[Draft], logits: Logits, batch: SamplingBatch) -> list[Draft]:
        """Samples the next draft token of each draft, and returns the drafts that continue."""
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
        """Runs the network, and returns its logits, cut or padded to the width of the main model's."""
        self.steps += 1
        logits = self._network.infer(prompts)
        missing = self._width - logits.shape[1]
        if missing > 0:
            return np.pad(logits, ((0, 0), (0, missing)), constant_values=-np.inf)
        return np.ascontiguousarray(logits[:, : self._width]) if missing else logits


class _Confidence:
    """The drafter's own probabilities, for requests whose drafts end at an improbable token."""

    def __init__(self, drafting: list[Draft], logits: Logits) -> None:
        """Computes the probabilities of tokens from logits [drafts, vocabulary] as the network made them.

        Sampling parameters and grammars have no influence on them.
        """
        least = [draft.text.params.assistant_confidence_threshold for draft in drafting]
        self._least = {place: value for place, value in enumerate(least) if value > 0}
        self._logits = logits[list(self._least)] if self._least else logits[:0]
        self._sums = log_sum_exp(self._logits) if self._least else np.zeros(0)

    def below(self, tokens: NDArray[np.int64]) -> set[int]:
        """Returns the indices of drafts whose tokens are less likely than their requests allow."""
        found = set()
        for number, (place, least) in enumerate(self._least.items()):
            if np.exp(self._logits[number, tokens[place]] - self._sums[number]) < least:
                found.add(place)
        return found
