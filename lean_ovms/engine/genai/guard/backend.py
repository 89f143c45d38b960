"""A pipeline of openvino_genai, or the scripted one, as a generation.backend.Backend."""

from __future__ import annotations

from collections.abc import Iterable

from ....config import EngineConfig
from ....engine_types import EngineStats
from ....errors import BadRequest
from ...generation.pipeline import ImagePlaceholders, LongTextEncoder
from ...generation.sequence import GenerationRequest
from .pipeline import Pipeline
from .scheduler import GuardedScheduler
from .step import Stepper


class GuardedPipeline(GuardedScheduler):
    """A Backend that keeps a pipeline from what it cannot do."""

    def __init__(self, pipeline: Pipeline, max_running: int, *, across: bool = False) -> None:
        super().__init__(pipeline, max_running, across=across)
        self.info, self.vocabulary, self.grammars = pipeline.info, pipeline.vocabulary, pipeline.grammars
        self.image_placeholders: ImagePlaceholders | None = pipeline.image_token_counter
        self.long_text_encoder: LongTextEncoder | None = pipeline.long_text_encoder
        self.stepper = Stepper(self)

    @classmethod
    def from_config(cls, pipeline: Pipeline, config: EngineConfig) -> GuardedPipeline:
        """With the options' limits. A draft model that takes fewer sequences than the main one would keep the others
        waiting inside GenAI for ever.
        """
        limits = (config.max_num_seqs, config.draft_max_num_seqs, pipeline.info.max_sequences)
        return cls(pipeline, min(limit for limit in limits if limit), across=config.priority_across_clients)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self.pipeline.encode(text, add_special_tokens)

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return self.pipeline.decode(tokens, skip_special_tokens)

    def check(self, request: GenerationRequest) -> None:
        """Refuses what GenAI cannot combine: beams ignore a grammar and do not go with drafts, min_tokens is filled
        with token 0 at the end of a grammar, and a prompt that is found in the prefix cache has no logits.
        """
        sampling, info = request.sampling, self.info
        if sampling.beams > 1 and info.speculative:
            raise BadRequest("beam search is not possible with speculative or prompt lookup decoding", param="best_of")
        if sampling.prompt_logprobs and info.prefix_caching:
            raise BadRequest(
                "log probabilities of the prompt need a server that was started with --enable_prefix_caching false",
                param="echo",
            )
        if sampling.prompt_logprobs and sampling.beams > 1:
            raise BadRequest("log probabilities of the prompt cannot be combined with beam search", param="best_of")
        if request.constraint and sampling.beams > 1:
            raise BadRequest("structured output cannot be combined with beam search (best_of > 1)", param="best_of")
        if request.constraint and sampling.min_tokens:
            raise BadRequest("structured output cannot be combined with min_tokens", param="min_tokens")
        request.sequences = list(self.sequences(request))
        request.native = request.sequences[0].pipeline_request()
        self.pipeline.check(request.native)

    def step(self) -> Iterable[str]:
        return self.stepper.step()

    def stats(self) -> EngineStats:
        return self.stepper.stats()
