"""The running sequences of the paged engine, with their rows, their blocks and what the prefix cache knows of them."""

from __future__ import annotations

import numpy as np

from ..generation.fair_queue import FairQueue
from ..generation.sequence import ClientQueue
from .block_manager import BlockManager, Parent
from .block_tables import BlockTables
from .drafting.proposer import Proposer
from .lora.adapters import AdapterTable
from .network import Network
from .sequence import Sequence


class RunningSequences:
    """Adds sequences and removes them; `scheduler` decides which.

    prefilling: sequences whose prompts are computed, in this order. caching: prompts may share the blocks of others.
    changed: the decoding sequences, or their blocks, are others than in the last step.
    """

    def __init__(
        self,
        network: Network,
        blocks: BlockManager,
        tables: BlockTables,
        proposer: Proposer,
        adapters: AdapterTable,
        waiting: FairQueue[Sequence],
        *,
        caching: bool,
    ) -> None:
        """waiting: charges clients for tokens."""
        self.blocks = blocks
        self.tables = tables
        self.waiting = waiting
        self.prefilling: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self.caching = caching and not network.hybrid
        self.changed = True
        self._network = network
        self._proposer = proposer
        self._adapters = adapters
        self._regroup = True
        self._jumping: list[Sequence] = []  # of the decoding, those with a grammar that may jump forward
        self._plain: list[Sequence] = []  # of the decoding, those without draft tokens
        self._plain_rows = np.zeros(0, np.int64)

    @property
    def running(self) -> list[Sequence]:
        return self.decoding + self.prefilling

    def blocks_of(self, client: ClientQueue) -> int:
        return sum(len(s.blocks) for s in self.running if s.client is client)

    def computed(self, sequence: Sequence, tokens: int) -> None:
        """Records that a sequence's first tokens are in the KV cache; others can share its full blocks from now on."""
        self.tables.computed[sequence.row] = tokens
        self._register(sequence, tokens)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Makes child go on from where parent is: it shares full blocks, and gets a copy of the one being written.

        A row and a block must be free.
        """
        self._adapters.acquire(child.params.adapter)
        row = self.tables.allocate([], child.params.adapter)
        self.tables.copy(parent.row, row)
        whole, rest = divmod(int(self.tables.computed[parent.row]), self.blocks.block_size)
        child.row, child.state = row, "decode"
        child.blocks, child.chain = parent.blocks[:whole], list(parent.chain)
        self.blocks.share(child.blocks)
        if rest:
            block = self.blocks.allocate()
            self._network.copy_block(parent.blocks[whole], block)
            child.blocks.append(block)
            self.tables.table[row, whole] = block
        self.tables.held[row] = len(child.blocks)
        self._network.copy_state(parent.row, row)
        self.decoding.append(child)
        self._regroup = True

    def leave(self, sequence: Sequence) -> None:
        """Removes a running sequence; its blocks are freed, and stay in the prefix cache until they are needed."""
        if sequence.row >= 0:
            (self.prefilling if sequence.state == "prefill" else self.decoding).remove(sequence)
            self._charge(sequence)
            self._register(sequence, int(self.tables.computed[sequence.row]))
            self.blocks.release(sequence.blocks)
            self.tables.free(sequence.row)
            self._adapters.release(sequence.params.adapter)
            sequence.blocks, sequence.chain, sequence.row = [], [], -1
            self._regroup = True
        sequence.state = "over"
        sequence.draft_tokens, sequence.jump_forward = [], False
        self._proposer.leave(sequence)

    def _group(self) -> None:
        self._plain = [s for s in self.decoding if not (s.params.lookahead or s.jump_forward)]
        self._jumping = [s for s in self.decoding if s.matcher is not None and s.search is None]
        self._plain_rows = np.array([s.row for s in self._plain], np.int64)
        self._regroup, self.changed = False, True

    def _charge(self, sequence: Sequence) -> None:
        """Charges a sequence's client for the tokens generated since the last time."""
        if len(sequence.ids) > sequence.charged:
            self.waiting.charge(sequence.client, len(sequence.ids) - sequence.charged)
            sequence.charged = len(sequence.ids)

    # --- the prefix cache

    def _known(self, sequence: Sequence, start: int) -> list[tuple[int, int]]:
        """Returns a sequence's blocks in the prefix cache from a block's border on; at least one token is not in them.

        There are none for a sequence that needs log probabilities of its prompt, which all has to be computed.
        """
        beginning = self._beginning(sequence)
        if beginning is None or sequence.needs_prompt_logprobs:
            return []
        parent = sequence.chain[-1] if sequence.chain else beginning
        return self.blocks.match(sequence.ids, start, len(sequence.ids) - 1, parent)

    def _beginning(self, sequence: Sequence) -> Parent | None:
        """Returns the parent of a sequence's first block in the prefix cache; None: the sequence does not use it.

        Without a prefix cache the choices of one request still share its prompt.
        """
        asked, request = sequence.params, sequence.request
        salt = asked.salt if self.caching else str(request.id) if request.sampling.n > 1 else ""
        if self._network.hybrid or not (self.caching or salt):
            return None
        return salt if asked.adapter is None else (asked.adapter.key, salt)

    def _register(self, sequence: Sequence, tokens: int) -> None:
        beginning = self._beginning(sequence)
        if beginning is not None:
            self.blocks.register_all(sequence.blocks, sequence.ids, tokens, sequence.chain, beginning)

    def _catch_up(self, sequence: Sequence) -> None:
        """Shares blocks that another sequence with the same prompt has computed meanwhile."""
        start, size = int(self.tables.computed[sequence.row]), self.blocks.block_size
        if start != size * len(sequence.chain) or len(sequence.blocks) != len(sequence.chain):
            return  # something of a block is its own, or it holds one from a step that failed
        if found := self._known(sequence, start):
            blocks = [block for block, _ in found]
            sequence.blocks += blocks
            sequence.chain += [serial for _, serial in found]
            self.tables.append(sequence.row, blocks)
            self.tables.computed[sequence.row] = start + len(found) * size
            if not sequence.preempted:
                sequence.cached += len(found) * size
