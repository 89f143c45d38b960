"""The paged engine as a generation.backend.Backend without a model, for tests, benchmarks and --fake_engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ....composition import compose
from ....config import EngineConfig
from ....engine.generation import fake_tokenizer as words
from ....engine.generation.backend import ImagePlaceholders, LongTextEncoder, WaitingRequests
from ....engine.generation.fair_queue import GenerationRequest
from ....engine.paged.engine import Engine
from ....engine.paged.parts import CAPABILITIES, EngineParts, EngineSizes
from ....engine.paged.sequence import Prepared, Sequence, engine_params
from ....engine.protocol import Failed, Submit
from ....errors import RESTARTING, EngineFailure, EngineLost, last_line
from ....manifest import TEXT_DRAFTS, TEXT_SEARCH
from .network import ScriptedNetwork
from .script import Script, answer, from_config, model_info

BEAMS = 20
"""The most sequences of a request, unless --best_of_limit sets it."""


class AnyText:
    """A paged.sequence.Matcher that allows everything. It has no state, so a fork is the same object."""

    def prepare(self) -> None:
        """Does nothing, since there is no mask."""

    def apply(self, row: NDArray[np.float32]) -> None:
        """Does nothing, since every token is allowed."""

    def consume(self, token: int) -> bool:
        return False

    def forced(self) -> list[int]:
        return []

    def fork(self) -> AnyText:
        return self


class AnyGrammar:
    """The PagedGrammars and ConstraintQueue of a scripted engine: every grammar is accepted, and nothing waits."""

    waiting = 0
    compiling = False

    def new_queue(self, wake: Callable[[], None], config: EngineConfig) -> AnyGrammar:
        """Returns itself, since it is also the queue."""
        return self

    def matcher(self, sequence: Sequence) -> AnyText:
        """Returns a matcher that allows everything."""
        return AnyText()

    def prepare(self, matchers: object) -> None:
        """Does nothing, since there are no masks."""

    def waiting_of(self, client: str) -> int:
        return 0

    def add(self, submit: Submit, request: GenerationRequest) -> bool:
        """Returns True, since every request may run."""
        return True

    def cancel(self, request_id: int) -> None:
        """Does nothing, since nothing waits."""

    def poll(self, may_compile: bool) -> tuple[()]:
        """Returns nothing, since nothing waits."""
        return ()


class ScriptedEngine(Engine):
    """Serves requests like PagedPipeline, but with the answers of a script instead of a model."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        max_running: int = 64,
        beams: int = BEAMS,
        priority_across_clients: bool = False,
    ) -> None:
        """Creates an engine that is ready at once.

        Args:
            script: The behaviour; None for the defaults.
            max_running: The most sequences that run at once.
            beams: The most sequences of one request.
            priority_across_clients: Whether priorities are compared across clients.
        """
        self.script = script = script or Script()
        self.network = ScriptedNetwork(script.step_s)
        sizes = EngineSizes(
            blocks=script.blocks,
            block_size=script.block_size,
            context=script.context + 8,
            step_tokens=script.step_tokens,
            max_sequences=beams,
            max_running=max_running,
            caching=script.prefix_caching,
            priority_across_clients=priority_across_clients,
        )
        # With this clock, concurrency does not depend on measured times.
        parts = EngineParts(
            grammars=AnyGrammar(),
            new_draft_source=compose().part(TEXT_DRAFTS) if script.speculative else None,
            new_search=compose().part(TEXT_SEARCH),
            clock=lambda: 0.0,
        )
        super().__init__(self.network, sizes, parts)
        self.network.batch = self._sequences
        self._speculative = bool(script.speculative)
        self.vocabulary = words.vocabulary()
        self.image_placeholders: ImagePlaceholders | None = None
        self.image_queue: WaitingRequests | None = None
        self.long_text_encoder: LongTextEncoder | None = None
        self.info = replace(model_info(script), capabilities=list(CAPABILITIES))

    @classmethod
    def from_config(cls, config: EngineConfig) -> ScriptedEngine:
        """Creates the engine of --fake_engine. Raises StartError."""
        return cls(
            from_config(config),
            max_running=config.max_num_seqs,
            beams=config.best_of_limit,
            priority_across_clients=config.priority_across_clients,
        )

    # --- generation.backend.Backend

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return words.encode(text, add_special_tokens)

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return words.decode(tokens, skip_special_tokens)

    def check(self, request: GenerationRequest) -> None:
        super().check(request)
        params = engine_params(request, speculative=self._speculative)
        request.native = Prepared(replace(params, temperature=0.0))  # the script has already chosen the tokens

    def add(self, request: GenerationRequest) -> None:
        sampling = request.sampling
        self.network.answers[request.id] = {
            index: answer(
                self.script.answer,
                request.prompt,
                sampling,
                seed=request.seed(index),
                stops=request.stops,
                min_tokens=sampling.min_tokens,
                max_tokens=request.max_tokens,
            )
            for index in ([0] if sampling.beams > 1 else request.unfinished)
        }
        super().add(request)

    def step(self) -> None:
        super().step()
        if len(self.network.answers) > len(self.requests):
            self.network.answers = {key: ids for key, ids in self.network.answers.items() if key in self.requests}

    # --- paged.engine.Engine

    def _sequences(self) -> list[Sequence]:
        step = self.runner.scheduled
        return [] if step is None else [*step.decoding, *(chunk.sequence for chunk in step.chunks)]

    def _recover(self, error: Exception) -> None:
        if self.script.recoverable:
            super()._recover(error)
            return
        lost = EngineFailure(RESTARTING)
        self.out += [Failed(number, lost.to_wire()) for number in self.requests]
        raise EngineLost(last_line(error))
