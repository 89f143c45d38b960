"""What drafts tokens for a model, by the options: a head of the model, a draft model, n-grams, or nothing."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from functools import partial
from pathlib import Path

from ....config import EngineConfig
from ...loading.load_errors import network as network_file
from ...loading.settings import PipelineSettings, is_small
from .. import heads
from ..block_manager import BlockManager
from ..block_tables import BlockTables
from ..grammar.matcher import Prepare
from ..model import PagedModel
from ..network import NotPageable
from ..parts import TILE, EngineSizes, NetworkEdit, ProposerFactory
from ..weights import open_weights
from .draft_model import DraftModel
from .head import Head

log = logging.getLogger(__name__)


class DraftPlan:
    """Loads what drafts tokens for one model, beside the model's own network."""

    def __init__(self, config: EngineConfig, settings: PipelineSettings, *, small: bool) -> None:
        """Loads nothing yet.

        Args:
            config: The options.
            settings: What was resolved from them.
            small: Whether a step of the model's network is short.
        """
        self.kind = settings.speculative
        """What drafts: "", "draft", "mtp", "eagle3" or "prompt_lookup"."""
        self.trees = self.kind in ("draft", "eagle3")
        """Whether draft tokens may have alternatives."""
        self.edits: Seq[NetworkEdit] = [heads.HeadTap(settings.head)] if settings.head is not None else []
        """What changes the model's network, so that a head can go on from it."""
        self._config = config
        self._settings = settings
        self._small = small
        self._network: PagedModel | None = None

    @property
    def ngrams(self) -> bool:
        """Whether requests get drafts of n-grams without asking for them.

        A step of a small network takes less time than another number of tokens would.
        """
        return self._config.ngram_speculation and not self.kind and not self._small

    def load(self, main: PagedModel, file: Path) -> int:
        """Loads the network that drafts, if there is one.

        Args:
            main: The model.
            file: The file of its network.

        Returns:
            The bytes that each block of the model takes besides its own.

        Raises:
            NotPageable: This engine cannot compute the network.
        """
        settings = self._settings
        if settings.head is not None:
            head = heads.HeadWeights(settings.head, file)
            self._network = PagedModel(head, settings.device, settings.properties)
            main.share_blocks(self._network)
            log.info("draft tokens come from the model's head, %s", settings.head)
        elif self.kind == "draft":
            self._network = self._draft_network()
            return 0 if self._config.draft_cache_size else self._network.block_bytes
        return 0

    def proposer_factory(self, main: PagedModel, sizes: EngineSizes, prepare: Prepare) -> ProposerFactory | None:
        """Returns what makes the proposer of an engine; None: there is no network that drafts.

        Args:
            main: The model.
            sizes: The sizes of the engine.
            prepare: Computes the masks of grammars.
        """
        if self._network is None:
            return None
        new = self._new_draft_model if self._settings.head is None else self._new_head
        return partial(new, self._network, main, sizes, prepare)

    def _new_head(
        self,
        network: PagedModel,
        main: PagedModel,
        sizes: EngineSizes,
        prepare: Prepare,
        blocks: BlockManager,
        tables: BlockTables,
    ) -> Head:
        return Head(network, main, blocks, tables, context=sizes.context, prepare=prepare)

    def _new_draft_model(
        self,
        network: PagedModel,
        main: PagedModel,
        sizes: EngineSizes,
        prepare: Prepare,
        blocks: BlockManager,
        tables: BlockTables,
    ) -> DraftModel:
        config, own = self._config, self._config.draft_cache_size << 30
        return DraftModel(
            network,
            blocks=max(1, own // network.block_bytes) if own else sizes.blocks,
            block_size=sizes.block_size,
            context=self._settings.draft_context,
            step_tokens=config.draft_max_num_batched_tokens or sizes.step_tokens,
            max_sequences=config.draft_max_num_seqs or sizes.max_running,
            main=main,
            caching=sizes.caching,
            prepare=prepare,
            tile=TILE if is_small(network_file(Path(config.draft_model_path))) else 1,
        )

    def _draft_network(self) -> PagedModel:
        """Raises NotPageable."""
        file = network_file(Path(self._config.draft_model_path))
        try:
            weights = open_weights(file)
            draft = PagedModel(weights, self._settings.device, self._settings.properties, twice=is_small(file))
        except NotPageable as error:
            raise NotPageable(f"the draft model: {error}") from error
        if draft.hybrid:
            raise NotPageable("the draft model keeps a state that cannot go back to before a wrong draft token")
        return draft
