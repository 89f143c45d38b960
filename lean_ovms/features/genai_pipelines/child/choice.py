"""Decides which pipeline of openvino_genai serves a model, and why.

As in OVMS, a model with vision gets a VLM pipeline, and any other model continuous batching, except on an NPU.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ....config import EngineConfig
from ....engine.loading.pipeline_choice import PROVEN, Choice, has_vision, speaks
from ....engine.paged.ir_weights import attention_cap, miscounts
from ....errors import StartError
from ....manifest import CHANGED_WEIGHTS
from ....repository import model_config, model_file
from ....repository.model_config import TALKER, TEXT_MODEL
from ....types.engine import CAPABILITIES, SPEECH
from .settings import is_npu

if TYPE_CHECKING:
    from .guard.backend import GuardedPipeline

log = logging.getLogger(__name__)

TRY_PAGED = "--pipeline_type PAGED on the CPU may serve it"
CONTINUOUS, STATEFUL, VISION, OMNI = "LM_CB", "LM", "VLM_CB", "OMNI"
MISCOMPUTED = frozenset(("gpt_neo", "granitemoehybrid", "mpt", "qwen3_5_moe_text", "qwen3_5_text"))
"""The model types whose tokens are wrong with openvino_genai's continuous batching (2026.4.1).

All tokens of a step have one position (paged.ir_weights), a state is not kept between the steps, or the kind of
attention is lost. They are right with its stateful pipeline.
"""


class GenAiPipelines:
    """Chooses and loads the pipeline of openvino_genai for one model."""

    def __init__(self, config: EngineConfig, available: Sequence[str]) -> None:
        """Keeps the options and the names of OpenVINO's devices; nothing is loaded."""
        self._config = config
        self._available = available
        self._vision = has_vision(config.model_dir)

    def choose(self, obstacle: str) -> Choice:
        """Chooses the pipeline that should serve the model. Raises StartError if none can.

        `obstacle` says why AUTO does not choose the paged engine; "" if --pipeline_type names a pipeline.
        """
        return self._loadable(self._by_auto(obstacle) if obstacle else self._as_asked())

    def without_paged(self, reason: str, *, miscounts: bool) -> Choice:
        """Chooses a pipeline for a model that the paged engine cannot load, for the given reason."""
        reason = f"the paged engine cannot serve this model: {reason}"
        if self._vision:
            return Choice(VISION, reason)
        return self._loadable(Choice(STATEFUL, reason) if miscounts else self._batching(reason))

    def load(self, choice: Choice) -> GuardedPipeline:
        """Loads the chosen pipeline, and logs which options and fields have no effect with it."""
        from .factory import load_guarded  # late, because it imports openvino_genai and all of its pipelines

        found = load_guarded(self._config, choice.pipeline, self._available)
        self._say_what_is_lost(choice, found.info.capabilities)
        if attention_cap(self._config.model_dir):
            said = (
                "answers will differ from the model's: exports for %s lack the soft cap of its attention, which only "
                "PAGED adds"
            )
            log.warning(said, choice.pipeline)
        return found

    def _as_asked(self) -> Choice:
        config, asked = self._config, self._config.pipeline_type
        if asked == OMNI and not speaks(config.model_dir):
            raise StartError(f"--pipeline_type OMNI: {config.model_dir} has no {TALKER}")
        if (asked.startswith("VLM") or asked == OMNI) != self._vision:
            what = "a model with vision" if self._vision else "a text model"
            raise StartError(f"--pipeline_type {asked}: {config.model_dir} contains {what}")
        wrong = self._miscomputed() if asked == CONTINUOUS else ""
        if wrong:
            log.warning("%s; the pipelines LM and PAGED do not", wrong)
        return Choice(asked, f"as --pipeline_type says, but {wrong}" if wrong else "as --pipeline_type says")

    def _by_auto(self, obstacle: str) -> Choice:
        config = self._config
        if self._vision and speaks(config.model_dir):
            return Choice(OMNI, obstacle)
        if is_npu(config, self._available):
            return Choice("VLM" if self._vision else STATEFUL, "an NPU computes one request at a time")
        if self._vision:
            return Choice(VISION, obstacle)
        choice = self._batching(obstacle)
        if choice.pipeline != CONTINUOUS or self._proven() or not miscounts(config.model_dir / TEXT_MODEL):
            return choice
        return Choice(STATEFUL, f"{obstacle}, and LM_CB would give all tokens of a step the same position")

    def _proven(self) -> bool:
        """Returns whether the model was tested with paged attention, or is one file, which is checked elsewhere."""
        model_dir = self._config.model_dir
        return model_file.is_one(model_dir) or model_config.read(model_dir).get("model_type") in PROVEN

    def _batching(self, reason: str) -> Choice:
        """Returns the choice of continuous batching, unless this is known to compute wrong tokens for the model."""
        wrong = self._miscomputed()
        return Choice(STATEFUL, f"{reason}, and {wrong}") if wrong else Choice(CONTINUOUS, reason)

    def _miscomputed(self) -> str:
        """Returns what is wrong with continuous batching for this model, or "" if nothing is known."""
        if model_file.is_one(self._config.model_dir):
            return ""
        kind = model_config.read(self._config.model_dir).get("model_type")
        return f"LM_CB generates wrong tokens with models of the type {kind}" if kind in MISCOMPUTED else ""

    def _loadable(self, choice: Choice) -> Choice:
        """Returns the choice. Raises StartError if the pipeline cannot load the model's file."""
        file = model_file.of(self._config.model_dir)
        if file is not None and (wrong := file.only_paged()):
            raise StartError(f"{self._config.model_dir}: {wrong}; {choice.reason}; {TRY_PAGED}")
        return choice

    def _say_what_is_lost(self, choice: Choice, capabilities: Collection[str]) -> None:
        """Logs the options and request fields that have no effect without the paged engine."""
        config, pipeline = self._config, choice.pipeline
        for option in (name for row in config.composition.engine_rows for name in row.options):
            if config.value(option):
                log.warning(
                    "--%s has no effect: it needs the prefix cache of PAGED, but the pipeline is %s", option, pipeline
                )
        if config.wants(CHANGED_WEIGHTS):
            for option in config.composition.parts[CHANGED_WEIGHTS].options:
                log.warning("--%s has no effect: it needs PAGED, but the pipeline is %s", option, pipeline)
        if fields := self.lost_fields(choice, capabilities):
            log.warning(
                "the pipeline is %s instead of PAGED, because %s: %s have no effect", *choice, ", ".join(fields)
            )

    def lost_fields(self, choice: Choice, capabilities: Collection[str]) -> list[str]:
        """Returns the request fields without an effect since AUTO chose this pipeline, and not the paged engine."""
        if self._config.pipeline_type != "AUTO" or choice.pipeline == OMNI:
            return []
        return [name for name, need in CAPABILITIES.items() if need not in capabilities and need != SPEECH]
