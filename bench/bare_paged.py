"""The limit of the paged engine: the loop of bare.py on it. python -m bench.bare_paged [options of the server]."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from bench import bare
from bench.direct import Completion, Requests
from bench.processes import answering
from lean_ovms.config import Config
from lean_ovms.engine.paged import assemble
from lean_ovms.engine.paged.pipeline import PagedPipeline
from lean_ovms.types import SamplingParams


class Loop(bare.Loop):
    """Adds requests, steps, reads."""

    def __init__(self, argv: list[str]) -> None:
        super().__init__(argv)
        self._requests = Requests(self._engine)

    def step(self) -> None:
        """One step of the engine."""
        self._requests.step()

    @staticmethod
    def load(config: Config) -> PagedPipeline:
        """The pipeline, warm."""
        return assemble.load(config.replace(pipeline_type="PAGED"))

    @staticmethod
    def tokenizer(engine: PagedPipeline) -> Any:
        """Returns the tokenizer of a pipeline: of openvino_genai, as the model is a directory."""
        return engine._tokenizer.native

    def begin(self, ids: np.ndarray, max_tokens: int, ignore_eos: bool) -> Completion:
        """Add a request to the next steps."""
        stops = frozenset() if ignore_eos else self._stops
        sampling = SamplingParams(temperature=0.0, ignore_eos=ignore_eos)
        return self._requests.add(ids.tolist(), sampling, max_tokens, stops=stops)


if __name__ == "__main__":
    loop = Loop(sys.argv[1:])
    answering(loop.answer)
