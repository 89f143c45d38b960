"""Proposes draft tokens with a draft model, a smaller network that reads the same tokens.

The draft model has a KV cache, blocks and a prefix cache of its own. It begins with a sequence after the main model has
computed its prompt, so drafts never delay a first token. It computes a long prompt in chunks, and proposes nothing for
the sequence until it has computed all of it. Keys and values of rejected tokens are overwritten.
"""

from __future__ import annotations

import numpy as np

from ....engine.paged.block_manager import BlockManager, BlockTables
from ....engine.paged.model_inputs import Chunk, ModelInputs
from ....engine.paged.network import Network
from ....engine.paged.parts import EngineSizes, Prepare, one_by_one
from ....engine.paged.sampling.reductions import Logits
from ....engine.paged.sequence import Sequence, forked
from .draft_length import DraftLength
from .drafter import NO_ROWS, Draft, Drafter

FIRST_LENGTH = 2
"""A request whose draft tokens are never accepted costs less with a short first draft, and others grow soon."""


class DraftModel(Drafter):
    """A Drafter with a model of its own, whose KV cache and prefix cache are apart from those of the main model."""

    name = "draft model"

    def __init__(self, network: Network, main: Network, sizes: EngineSizes, prepare: Prepare = one_by_one) -> None:
        """Makes the caches of the draft model.

        Args:
            network: The network of the draft model, without caches.
            main: The network of the main model.
            sizes: The sizes of the draft model's caches and steps.
            prepare: Computes the masks of the grammars of a step.
        """
        tables = BlockTables(sizes.max_running, sizes.context, sizes.block_size)
        network.allocate(sizes.blocks + (sizes.pad_to > 1), tables.total)
        inputs = ModelInputs(network, tables, pad_to=sizes.pad_to, padding_block=sizes.blocks)
        blocks = BlockManager(sizes.blocks, sizes.block_size)
        super().__init__(network, inputs, blocks, tables, context=sizes.context, main=main, prepare=prepare)
        self._step_tokens = sizes.step_tokens
        self._caching = sizes.caching

    def _begin(self, sequence: Sequence) -> Draft | None:
        if not self._tables.available:
            return None
        return Draft(sequence, self._copied(sequence), DraftLength(FIRST_LENGTH))

    def _release(self, draft: Draft) -> None:
        self._roll_back(draft)
        self.blocks.release(draft.text.blocks)
        self._tables.free(draft.text.row)

    def _copied(self, sequence: Sequence) -> Sequence:
        """Returns a copy of a sequence for the draft model, with a row and the blocks that its prefix cache has."""
        text = forked(sequence, sequence.index)
        if self._caching:
            cached = self.blocks.match(text.ids, 0, len(text.ids) - 1, text.params.cache_salt)
            text.blocks, text.chain = [block for block, _ in cached], [serial for _, serial in cached]
        text.row = self._tables.allocate(text.blocks)
        return text

    def _roll_back(self, draft: Draft) -> None:
        """Keeps what the cache has of accepted tokens, except the newest, which is computed again for its logits."""
        text, ids = draft.text, draft.sequence.ids
        computed = min(int(self._tables.computed[text.row]), len(ids) - 1)
        valid = min(draft.base, computed)
        while valid < computed and text.ids[valid] == ids[valid]:
            valid += 1
        self._tables.computed[text.row] = valid
        if self._caching:
            self.blocks.register_all(text.blocks, ids, valid, text.chain, text.params.cache_salt)

    def _catch_up(self, drafts: list[Draft]) -> tuple[list[Draft], Logits]:
        """Computes the tokens that the cache lacks, sequences that lack the fewest tokens first, within one step.

        Returns the drafts that are complete now, with the logits of their last tokens.
        """
        computed, budget = self._tables.computed, self._step_tokens
        chunks: list[Chunk] = []
        complete: list[Draft] = []
        for draft in sorted(drafts, key=lambda draft: draft.base - int(computed[draft.text.row])):
            start = int(computed[draft.text.row])
            count = min(draft.base - start, budget)
            whole = start + count == draft.base
            # The last draft token is only computed if it is accepted and the text continues.
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

    def _decode(self, drafting: list[Draft], changed: bool) -> Logits:
        rows = np.array([draft.text.row for draft in drafting], np.int64)
        self._tables.newest[rows] = [draft.text.ids[-1] for draft in drafting]
        allocated = self._tables.num_blocks
        need = self._tables.computed[rows] // self.blocks.block_size + 1
        changed = changed or bool((allocated[rows] != need).any())
        allocated[rows] = need
        self._inputs.write(rows, [], changed)
        logits = self._infer(prompts=False)
        self._tables.computed[rows] += 1
        return logits

    def _grow(self, text: Sequence, tokens: int) -> bool:
        """Allocates blocks for `tokens` tokens. Returns False, and allocates none, if there are not enough."""
        known = len(text.blocks)
        need = self.blocks.blocks(tokens) - known
        if need > self.blocks.available:
            return False
        for _ in range(need):
            text.blocks.append(self.blocks.allocate())
        self._tables.table[text.row, known : len(text.blocks)] = text.blocks[known:]
        return True
