"""A draft model as the proposer: a smaller network that reads the same tokens and proposes draft tokens.

The draft model has a KV cache, blocks and a prefix cache of its own. It computes a sequence once the main model has
computed its prompt, so drafts never delay a first token; it computes a long prompt in chunks, and drafts nothing for
the sequence until it has all of it. Draft tokens are sampled as the main model's are, with the same parameters, grammar
and random numbers, so that the same token is likely to come out. What a step rejects is overwritten: keys and values
are valid up to the first wrong draft token. A sequence that the draft model is often wrong about gets shorter drafts,
and at last few.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import last_line
from ..block_manager import BlockManager
from ..block_tables import BlockTables
from ..grammar.matcher import Prepare, one_by_one
from ..model_inputs import Chunk, ModelInputs
from ..network import Network
from ..sampling.logprobs import log_sum_exp
from ..sampling.sampler import SamplingBatch, sample
from ..sequence import Sequence, forked
from .draft_length import DraftLength

log = logging.getLogger(__name__)

Logits = NDArray[np.float32]
NO_ROWS = np.zeros(0, np.int64)


@dataclass(slots=True)
class Draft:
    """A sequence in the draft model's cache.

    text: a copy of the sequence, which has the draft tokens behind its first `base` tokens, with row, blocks and chain
    of the draft model's cache. most: tokens to draft.
    """

    sequence: Sequence
    text: Sequence
    length: DraftLength
    base: int = 0
    most: int = 0

    @property
    def open(self) -> bool:
        """Whether the sequence may get more draft tokens in this step."""
        return len(self.sequence.draft_tokens) < self.most


class DraftModel:
    """A proposer.Proposer that runs a draft model. steps: forward passes of the draft model.

    A draft model that fails is not used any more; completions do not depend on it.
    """

    def __init__(
        self,
        network: Network,
        *,
        blocks: int,
        block_size: int,
        context: int,
        step_tokens: int,
        max_sequences: int,
        width: int,
        caching: bool = True,
        prepare: Prepare = one_by_one,
        tile: int = 1,
    ) -> None:
        """context: the draft model's own. max_sequences: that get drafts at once. width: of the main model's logits.

        caching, prepare, tile: as in Engine.
        """
        tables = BlockTables(max_sequences, context, block_size)
        network.allocate(blocks + (tile > 1), tables.total)
        self.blocks = BlockManager(blocks, block_size)
        self.steps = 0
        self._network = network
        self._tables = tables
        self._inputs = ModelInputs(network, tables, tile=tile, spare=blocks)
        self._context = context
        self._step_tokens = step_tokens
        self._width = width
        self._caching = caching
        self._prepare = prepare
        self._drafts: dict[Sequence, Draft] = {}
        self._failed = False

    # --- proposer.Proposer

    def propose(self, wanted: list[tuple[Sequence, int]]) -> None:
        for sequence, _ in wanted:
            sequence.draft_tokens = []
        if self._failed:
            return
        try:
            self._propose(wanted)
        except Exception as error:  # of openvino, whatever it raises
            log.error("the draft model failed and is not used any more: %s", last_line(error))
            self._failed = True
            for sequence in list(self._drafts):
                self.leave(sequence)
            for sequence, _ in wanted:
                sequence.draft_tokens = []

    def leave(self, sequence: Sequence) -> None:
        draft = self._drafts.pop(sequence, None)
        if draft is not None:
            self._roll_back(draft)
            self.blocks.release(draft.text.blocks)
            self._tables.free(draft.text.row)

    # --- one proposal

    def _propose(self, wanted: list[tuple[Sequence, int]]) -> None:
        drafts = [draft for sequence, most in wanted if (draft := self._resume(sequence, most)) is not None]
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
            logits = self._decode(np.array([draft.text.row for draft in drafting], np.int64), changed)

    def _resume(self, sequence: Sequence, most: int) -> Draft | None:
        """Brings a sequence's draft up to date; None if the sequence gets no draft tokens in this step."""
        draft, most = self._drafts.get(sequence), min(most, self._context - len(sequence.ids))
        if most <= 0:
            return None
        if draft is None:
            if not self._tables.available:
                return None
            draft = self._drafts[sequence] = Draft(
                sequence, self._copied(sequence), DraftLength(sequence.params.lookahead)
            )
        else:
            draft.length.compare(draft.text.ids[draft.base :], sequence.ids[draft.base :])
            self._roll_back(draft)
        most = draft.length.next(most)
        if not most:
            del draft.text.ids[draft.base :]  # nothing is to be learned from the last draft tokens again
            return None
        before, text = draft.text, forked(sequence, sequence.index)
        text.row, text.blocks, text.chain = before.row, before.blocks, before.chain
        draft.text, draft.base, draft.most = text, len(text.ids), most
        return draft

    def _copied(self, sequence: Sequence) -> Sequence:
        """Returns a copy of a sequence with a row, and what the draft model's prefix cache has of it."""
        text = forked(sequence, sequence.index)
        if self._caching:
            cached = self.blocks.match(text.ids, 0, len(text.ids) - 1, text.params.salt)
            text.blocks, text.chain = [block for block, _ in cached], [serial for _, serial in cached]
        text.row = self._tables.allocate(text.blocks)
        return text

    def _roll_back(self, draft: Draft) -> None:
        """Keeps what the cache has of the sequence's own tokens, and of draft tokens up to the first wrong one.

        At least the newest token is computed again, for its logits.
        """
        text, ids = draft.text, draft.sequence.ids
        computed = min(int(self._tables.computed[text.row]), len(ids) - 1)
        valid = min(draft.base, computed)
        while valid < computed and text.ids[valid] == ids[valid]:
            valid += 1
        self._tables.computed[text.row] = valid
        if self._caching:
            self.blocks.register_all(text.blocks, ids, valid, text.chain, text.params.salt)

    def _catch_up(self, drafts: list[Draft]) -> tuple[list[Draft], Logits]:
        """Computes the tokens that the cache lacks of these sequences, the fewest first, within one step.

        Returns the drafts that are complete now, with the logits of their last tokens.
        """
        computed, budget = self._tables.computed, self._step_tokens
        chunks: list[Chunk] = []
        complete: list[Draft] = []
        for draft in sorted(drafts, key=lambda draft: draft.base - int(computed[draft.text.row])):
            start = int(computed[draft.text.row])
            count = min(draft.base - start, budget)
            whole = start + count == draft.base
            # The last draft token is not computed, unless it is right and the text goes on.
            if count > 0 and self._grow(draft.text, start + count + (draft.most - 1 if whole else 0)):
                chunks.append(Chunk(draft.text, start, count, int(whole)))
                complete += [draft] if whole else []
                budget -= count
        if not chunks:
            return [], np.zeros((0, self._width), np.float32)
        self._inputs.write(NO_ROWS, chunks, True)
        logits = self._infer(prompts=True)
        for chunk in chunks:
            computed[chunk.sequence.row] = chunk.start + chunk.length
        return complete, logits

    def _decode(self, rows: NDArray[np.int64], changed: bool) -> Logits:
        """Computes one more token of each row; returns the logits. changed: the rows differ from the last step's."""
        allocated = self._tables.num_blocks
        need = self._tables.computed[rows] // self.blocks.block_size + 1
        changed = changed or bool((allocated[rows] != need).any())
        allocated[rows] = need
        self._inputs.write(rows, [], changed)
        logits = self._infer(prompts=False)
        self._tables.computed[rows] += 1
        return logits

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
            self._tables.newest[draft.text.row] = token
            if token in draft.text.stops or not draft.open:
                ended.add(place)
        for place in batch.edited:
            if place not in ended and drafting[place].text.follow(tokens[place]):
                ended.add(place)
        return [draft for place, draft in enumerate(drafting) if place not in ended] if ended else drafting

    def _grow(self, text: Sequence, tokens: int) -> bool:
        """Allocates blocks for so many tokens; False, and none, if there are not enough."""
        known = len(text.blocks)
        need = self.blocks.blocks(tokens) - known
        if need > self.blocks.available:
            return False
        for _ in range(need):
            text.blocks.append(self.blocks.allocate())
        self._tables.table[text.row, known : len(text.blocks)] = text.blocks[known:]
        return True

    def _infer(self, prompts: bool) -> Logits:
        """Runs the draft model; returns its logits, as wide as the main model's, which may be padded differently."""
        self.steps += 1
        logits = self._network.infer(prompts)
        missing = self._width - logits.shape[1]
        if missing > 0:
            return np.pad(logits, ((0, 0), (0, missing)), constant_values=-np.inf)
        return np.ascontiguousarray(logits[:, : self._width]) if missing else logits


class _Confidence:
    """The draft model's own probabilities, for requests whose drafts end where these are low."""

    def __init__(self, drafting: list[Draft], logits: Logits) -> None:
        """logits: [drafts, vocab], not changed yet."""
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
