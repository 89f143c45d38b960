"""Proposes draft tokens with a head: one more layer on the model's hidden states, for MTP or Eagle-3.

From the hidden state of a token, the main model computes the logits of the next token. From the same state and the next
token, the head computes the logits of the token after that, and continues from its own hidden states. Its keys and
values are in the blocks of the main model, so the prefix cache, copies and the disk contain them as well. The position
of a token has the key and value for its hidden state and the token after it. For the last position of a cached block
they may have been computed with another next token, or not at all if a sequence ended there. That makes drafts worse,
but changes no answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....engine.paged.block_manager import BlockManager, BlockTables
from ....engine.paged.model_inputs import Chunk, ModelInputs
from ....engine.paged.network import Network
from ....engine.paged.parts import Prepare
from ....engine.paged.sampling.reductions import Logits
from ....engine.paged.sequence import Sequence, forked
from .draft_length import DraftLength
from .drafter import NO_ROWS, Draft, Drafter

LENGTHS = 1, 1, 1, 64
"""A head was trained to know one token more, or a few, so drafts begin with one and grow by one. A token of an MTP head
costs a tenth to a fourth of a step, for the last projection is the model's: one that is never right pauses for long."""
MOST_PENDING = 32
"""Hidden states of a sequence that are kept for the next draft; more are computed without one."""


@dataclass(slots=True)
class Pending:
    """Hidden states of a sequence from the main model that the head has not processed yet."""

    start: int
    """The position in the sequence of the first state's token."""
    rows: NDArray[np.float32]
    """The states [tokens, width]; the last ones may belong to rejected draft tokens."""


class Head(Drafter):
    """A drafter that uses the hidden states and the blocks of the main model."""

    name = "head"

    def __init__(
        self,
        network: Network,
        main: Network,
        blocks: BlockManager,
        tables: BlockTables,
        *,
        context: int,
        prepare: Prepare,
    ) -> None:
        """Makes the inputs of the head; it has no cache of its own.

        Args:
            network: The network of the head.
            main: The network of the main model, which has the hidden states.
            blocks: The blocks of the main model's cache.
            tables: The rows of the main model's cache, with the blocks of each sequence.
            context: The most tokens of a sequence with its draft tokens.
            prepare: Computes the masks of the grammars of a step.
        """
        inputs = ModelInputs(network, tables, ahead=1)
        super().__init__(network, inputs, blocks, tables, context=context, main=main, prepare=prepare)
        self._main = main
        self._pending: dict[Sequence, Pending] = {}
        # The head's own hidden state for the newest token of each draft.
        self._hidden: dict[Sequence, NDArray[np.float32]] = {}

    def computed(self, decoding: int, chunks: list[Chunk]) -> None:
        """Keeps the hidden states of a step of the main model for the sequences that may get draft tokens."""
        if self._failed:
            return
        hidden, at = self._main.hidden, decoding
        for sequence, start, length, *_ in chunks:
            rows, at = hidden[at : at + length], at + length
            if not sequence.params.num_assistant_tokens:
                continue
            pending = self._pending.get(sequence)
            if pending is None:
                self._pending[sequence] = Pending(start, rows.copy())
            else:
                kept = start - pending.start  # -1 if the token before them was an alternative, and is computed again
                pending.rows = np.concatenate([pending.rows[: max(0, kept)], rows[max(0, -kept) :]])

    def leave(self, sequence: Sequence) -> None:
        super().leave(sequence)
        self._pending.pop(sequence, None)

    # --- Drafter

    def _begin(self, sequence: Sequence) -> Draft | None:
        if sequence not in self._pending:
            return None
        return Draft(sequence, forked(sequence, sequence.index), DraftLength(*LENGTHS))

    def _roll_back(self, draft: Draft) -> None:
        """Replaces the hidden states of all draft tokens by those of the main model.

        If an alternative was accepted, its state is the last one of its step, after those of the draft tokens.
        """
        pending, sequence = self._pending[draft.sequence], draft.sequence
        place = len(sequence.ids) - 2 - pending.start
        if place == int(self._tables.computed[sequence.row]) - pending.start < len(pending.rows) and place >= 0:
            pending.rows[place] = pending.rows[-1]

    def _release(self, draft: Draft) -> None:
        """Frees nothing, since row and blocks belong to the sequence."""

    def _catch_up(self, drafts: list[Draft]) -> tuple[list[Draft], Logits]:
        """Processes the pending states, also those of long prompts that the main model is still computing.

        Returns the drafts that are complete now, with the logits of their last tokens.
        """
        # The main model had no room for the others in this step.
        drafts = [draft for draft in drafts if self._known(draft.sequence)]
        drafting = [draft.sequence for draft in drafts]
        waiting = [s for s, pending in self._pending.items() if len(pending.rows) > MOST_PENDING and s not in drafting]
        chunks: list[Chunk] = []
        rows: list[NDArray[np.float32]] = []
        for sequence in drafting + waiting:
            pending, count = self._pending[sequence], self._known(sequence)
            chunks.append(Chunk(sequence, pending.start, count, int(len(chunks) < len(drafting))))
            rows.append(pending.rows[:count])
            pending.start, pending.rows = pending.start + count, pending.rows[count:]
        for draft in drafts:
            draft.text.row, draft.text.blocks = draft.sequence.row, draft.sequence.blocks
            draft.most = min(draft.most, self._grow(draft.text, draft.base + draft.most - 2) - draft.base + 2)
        return drafts, self._run(chunks, rows, drafts)

    def _decode(self, drafting: list[Draft], changed: bool) -> Logits:
        chunks = [Chunk(draft.text, len(draft.text.ids) - 2, 1, 1) for draft in drafting]
        return self._run(chunks, [self._hidden[draft.sequence] for draft in drafting], drafting)

    def _known(self, sequence: Sequence) -> int:
        """Returns the number of a sequence's pending tokens that were accepted and whose next tokens are known."""
        decoding = sequence.state == "decode"
        known = len(sequence.ids) - 1 if decoding else int(self._tables.computed[sequence.row])
        return known - self._pending[sequence].start

    def _grow(self, text: Sequence, tokens: int) -> int:
        """Allocates blocks for up to `tokens` tokens, and returns the number of tokens for which there is room."""
        need = min(self.blocks.blocks(tokens) - len(text.blocks), self.blocks.available)
        new = [self.blocks.allocate() for _ in range(need)]
        text.blocks += new
        self._tables.append(text.row, new)
        return min(tokens, len(text.blocks) * self.blocks.block_size)

    def _run(self, chunks: list[Chunk], rows: list[NDArray[np.float32]], drafting: list[Draft]) -> Logits:
        """Computes chunks with their hidden states, and returns the logits of the drafts, whose chunks come first."""
        if not chunks:
            return np.zeros((0, self._width), np.float32)
        self._inputs.write(NO_ROWS, chunks, True)
        self._inputs.write_hidden(rows)
        logits = self._infer(prompts=True)
        hidden = self._network.hidden
        self._hidden = {draft.sequence: hidden[place : place + 1] for place, draft in enumerate(drafting)}
        return logits
