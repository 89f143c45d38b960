"""Loads the network that proposes draft tokens: a draft model, or a head of the model."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

from ....engine.loading.pipeline_choice import network as network_file
from ....engine.loading.settings import PipelineSettings, is_small
from ....engine.paged.block_manager import BlockManager, BlockTables
from ....engine.paged.ir_weights import open_weights
from ....engine.paged.model import PagedModel
from ....engine.paged.network import NetworkEdit, NotPageable
from ....engine.paged.parts import TILE, DraftSourceFactory, EngineSizes, Prepare
from ....errors import StartError
from . import heads
from .draft_model import DraftModel
from .draft_source import BudgetedDrafts
from .head import Head

log = logging.getLogger(__name__)
PADDING = 1024
"""The most by which vocabularies of models with one tokenizer differ, by rows of padding: 128 in Qwen2.5's family."""


class NetworkDrafts:
    """The plan of a model for which a network proposes draft tokens."""

    ngrams = False

    def __init__(self, settings: PipelineSettings) -> None:
        """Keeps the settings that were made from the options; nothing is loaded."""
        self.kind = settings.speculative
        self.trees = self.kind in ("draft", "eagle3")
        self.edits: Seq[NetworkEdit] = [heads.HeadTap(settings.head)] if settings.head is not None else []
        self._settings = settings
        self._network: PagedModel | None = None
        self._pad_to = 1

    def load(self, main: PagedModel, file: Path) -> int:
        """Loads the draft model or the head. Returns the additional bytes for each KV block of the main model."""
        settings = self._settings
        if settings.head is not None:
            head = heads.HeadWeights(settings.head, file)
            self._network = PagedModel(head, settings.device, settings.properties)
            main.share_blocks(self._network)
            log.info("draft tokens come from the model's head, %s", settings.head)
        elif self.kind == "draft" and settings.drafts.model is not None:
            self._network = self._draft_network(network_file(settings.drafts.model), main)
            return 0 if settings.drafts.cache_gb else self._network.block_bytes
        return 0

    def source_factory(self, main: PagedModel, sizes: EngineSizes, prepare: Prepare) -> DraftSourceFactory | None:
        """Returns a function that makes an engine's source of drafts, or None if no network drafts tokens."""
        network, drafts = self._network, self._settings.drafts
        if network is None:
            return None

        def new(blocks: BlockManager, tables: BlockTables) -> BudgetedDrafts:
            if self._settings.head is not None:
                return BudgetedDrafts(Head(network, main, blocks, tables, context=sizes.context, prepare=prepare))
            own = drafts.cache_gb << 30
            own_sizes = replace(
                sizes,
                blocks=max(1, own // network.block_bytes) if own else sizes.blocks,
                context=self._settings.draft_context,
                step_tokens=drafts.step_tokens or sizes.step_tokens,
                max_running=drafts.max_sequences or sizes.max_running,
                pad_to=self._pad_to,
            )
            return BudgetedDrafts(DraftModel(network, main, own_sizes, prepare))

        return new

    def _draft_network(self, file: Path, main: PagedModel) -> PagedModel:
        """Compiles the draft model. Raises NotPageable if paged attention is not possible with it."""
        self._pad_to = TILE if (small := is_small(file)) else 1
        try:
            draft = PagedModel(
                open_weights(file),
                self._settings.device,
                self._settings.properties,
                separate_prefill_model=small,
                soft_caps=main.soft_caps,
            )
        except NotPageable as error:
            raise NotPageable(f"the draft model: {error}") from error
        if draft.hybrid:
            raise NotPageable("the draft model has a state that cannot be reset after a wrong draft token")
        check_vocabularies(draft.vocab_size, main.vocab_size)
        return draft


def check_vocabularies(draft: int, main: int) -> None:
    """Checks that the draft model and the main model, with vocabularies of these sizes, may have the same tokenizer.

    Raises StartError.
    """
    if abs(draft - main) > PADDING:
        sizes = f"the draft model has a vocabulary of {draft} tokens and the model one of {main}"
        raise StartError(f"{sizes}: both need the same tokenizer (--draft_model_path)")
