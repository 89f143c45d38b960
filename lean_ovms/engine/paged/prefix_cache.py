"""Shares computed prefixes between sequences: records what each has computed, and finds it for others.

Prompts that begin with the same tokens share blocks, even if they arrive together: one waits while another computes the
common prefix. A hybrid network shares only prefixes that end at a checkpoint of its states, so a checkpoint is made
where prompts diverge.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from .block_manager import BlockManager, BlockTables, Parent
from .model_inputs import Chunk
from .parts import StepHook
from .sequence import Sequence
from .state_checkpoints import StateCheckpoints


@dataclass(slots=True, eq=False)
class PrefixCache:
    """Records the computed tokens of sequences, and finds the cached prefix of a prompt."""

    blocks: BlockManager
    """The blocks of the KV cache, which can be found by their tokens."""
    tables: BlockTables
    """The block tables of running sequences."""
    checkpoints: StateCheckpoints
    """The states of a hybrid network after cached prefixes."""
    caching: bool
    """Whether prompts of different requests share blocks."""
    hooks: list[StepHook]
    """The features' hooks, which may make a sequence wait until its blocks have been read from disk."""

    def root(self, sequence: Sequence) -> Parent | None:
        """Returns the parent of a sequence's first block; None if it shares no blocks, even with other choices."""
        request, adapter = sequence.request, sequence.adapter
        if sequence.spoiled:
            return None
        salt = sequence.params.cache_salt if self.caching else str(request.id) if request.sampling.n > 1 else ""
        if not (self.caching or salt):
            return None
        return salt if adapter is None else (adapter.key, salt)

    # --- what is computed

    def computed(self, chunk: Chunk) -> None:
        """Records that a part of a prompt has been computed, so that others can share its full blocks."""
        sequence = chunk.sequence
        for end in chunk.ends:
            self.tables.computed[sequence.row] = end
            self.register(sequence, end)
            self.checkpoints.prompt_computed(sequence, end)

    def accept(self, sequence: Sequence, tokens: int) -> None:
        """Records that one more token of a sequence with draft tokens has been computed, which makes `tokens`."""
        self.tables.computed[sequence.row] = tokens
        self.checkpoints.take_written_state(sequence)
        self.checkpoint_completion(sequence)

    def register(self, sequence: Sequence, tokens: int) -> None:
        """Makes the full blocks among a sequence's first `tokens` tokens available to others."""
        root = self.root(sequence)
        if root is not None:
            self.blocks.register_all(sequence.blocks, sequence.ids, tokens, sequence.chain, root)

    def checkpoint_preempted(self, sequence: Sequence) -> None:
        """Makes the state of a sequence that is preempted a checkpoint if it is at the end of a block."""
        if sequence.row >= 0 and sequence.search is None:
            self.register(sequence, int(self.tables.computed[sequence.row]))
            self.checkpoints.add(sequence, "completion")

    def checkpoint_completion(self, sequence: Sequence) -> None:
        """Makes the state of a decoding sequence a checkpoint if it is at the end of a block."""
        if not self.checkpoints.enabled or sequence.row < 0 or sequence.search is not None:
            return
        computed = int(self.tables.computed[sequence.row])
        if computed % self.blocks.block_size == 0:
            self.register(sequence, computed)
            self.checkpoints.add_completion(sequence)

    def spoil(self, sequence: Sequence) -> None:
        """Removes the blocks of a sequence from the prefix cache for good, since their values are not finite."""
        for member in sequence.members:
            member.spoiled = True
            self.blocks.spoil(member.chain)

    # --- what is known

    def must_wait(self, sequence: Sequence) -> bool:
        """Returns whether a feature makes a sequence wait, for instance while its blocks are read from disk."""
        return any(hook.must_wait(sequence, self.root(sequence)) for hook in self.hooks)

    def lacks(self, blocks: int) -> bool:
        """Returns whether fewer blocks can be allocated even after features have freed those that they hold."""
        if self.blocks.available < blocks:
            for hook in self.hooks:
                hook.give_back()
        return self.blocks.available < blocks

    def match_prefix(self, sequence: Sequence, start: int) -> list[tuple[int, int]]:
        """Returns a sequence's cached blocks from a block boundary on, and leaves at least one token to be computed.

        With a hybrid network, blocks after the last checkpoint cannot be used; a checkpoint will be made at their end
        this time. A sequence that needs log probabilities of its prompt gets none, since the whole prompt must be
        computed.
        """
        root = self.root(sequence)
        if root is None or sequence.needs_prompt_logprobs:
            return []
        parent = sequence.chain[-1] if sequence.chain else root
        found = self.blocks.match(sequence.ids, start, len(sequence.ids) - 1, parent)
        usable, size = self.checkpoints.states.matched([serial for _, serial in found]), self.blocks.block_size
        if (images := sequence.images) is not None:
            usable = max(0, images.cached(start // size + usable, size) - start // size)
        if usable < len(found):
            self.blocks.release([block for block, _ in found[usable:]])
            sequence.cached_end = start + len(found) * size
        return found[:usable]

    def prefix_owners(self, prompts: list[Sequence]) -> dict[Sequence, Sequence]:
        """Returns which prompts of a step have to wait, each with the prompt that is computing their common prefix."""
        owners: dict[Sequence, Sequence] = {}
        known: dict[tuple[Parent, bytes], list[Sequence]] = {}
        size, computed = self.blocks.block_size, self.tables.computed
        for sequence in prompts:
            root = self.root(sequence)
            if root is None or sequence.row < 0:
                continue
            self._catch_up(sequence)
            alike = known.setdefault((root, sequence.ids[:size].tobytes()), [])
            for other in alike if not sequence.needs_prompt_logprobs else ():
                if self.shares_prefix(other, sequence) and computed[other.row] >= computed[sequence.row]:
                    owners[sequence] = other
                    break
            else:
                alike.append(sequence)
        return owners

    def shares_prefix(self, first: Sequence, second: Sequence) -> bool:
        """Returns whether a running prompt has still to compute blocks that another prompt begins with, too.

        A hybrid network will make a checkpoint at their end.
        """
        size, start = self.blocks.block_size, int(self.tables.computed[first.row])
        root = self.root(first)
        at = start // size * size
        if root is None or self.root(second) != root or len(second.ids) <= at + size:
            return False
        if first.ids[at : at + size] != second.ids[at : at + size]:
            return False
        common = _common(first.ids, second.ids) // size * size
        if common <= start or not self.checkpoints.enabled:
            return common > start
        return self.checkpoints.note_shared(first, common)

    def _catch_up(self, sequence: Sequence) -> None:
        """Assigns blocks to a sequence that another sequence with the same prompt has computed in the meantime."""
        start, size = int(self.tables.computed[sequence.row]), self.blocks.block_size
        if start != size * len(sequence.chain) or len(sequence.blocks) != len(sequence.chain):
            return  # a block has tokens of its own, or one that a failed step left
        if found := self.match_prefix(sequence, start):
            blocks = [block for block, _ in found]
            sequence.blocks += blocks
            sequence.chain += [serial for _, serial in found]
            self.tables.append(sequence.row, blocks)
            self.tables.computed[sequence.row] = start + len(found) * size
            self.checkpoints.restore(sequence)
            if not sequence.preempted:
                sequence.cached += len(found) * size


def _common(ids: array[int], others: array[int]) -> int:
    """Returns the length of the common prefix of two sequences, excluding the last token of the second."""
    most = min(len(ids), len(others) - 1)
    equal = np.frombuffer(ids, np.int64, most) == np.frombuffer(others, np.int64, most)
    return most if equal.all() else int(equal.argmin())
