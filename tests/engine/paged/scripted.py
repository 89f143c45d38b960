"""The paged engine as a backend without a model: its network says what the scripted pipeline would."""

import numpy as np

from lean_ovms.engine.genai.guard.fake_pipeline import FakePipeline, Script
from lean_ovms.engine.genai.guard.pipeline import PipelineRequest
from lean_ovms.engine.generation import fake_tokenizer as words
from lean_ovms.engine.paged.engine import Engine
from lean_ovms.engine.paged.params import read
from lean_ovms.engine.paged.parts import EngineParts, EngineSizes
from lean_ovms.engine_types import CAPABILITIES, ModelInfo
from lean_ovms.errors import BadRequest
from tests.engine.paged.network import FakeNetwork


def line_for(token):
    """Logits with which a token is by far the likeliest, then those that follow it in the vocabulary."""
    line = np.full(words.VOCAB_SIZE, -40.0, np.float32)
    for place in range(8):
        line[(token + place) % words.VOCAB_SIZE] = -10.0 * (place > 0) - place
    return line


class ScriptedNetwork(FakeNetwork):
    """sequences: of the batch, set by the backend. A prompt with <|raise|> makes the step raise."""

    vocab_size = words.VOCAB_SIZE

    def __init__(self, block_size, script):
        super().__init__(block_size)
        self.script = FakePipeline(script)
        self.sequences = []
        self.answers = {}

    def start(self, prompts):
        super().start(prompts)
        if words.RAISE in self._input("input_ids"):
            self.fail = 1

    def line(self, place, text):
        sequence = self.sequences[place]
        prompt = list(sequence.ids[: sequence.prompt])
        if len(text) < len(prompt):
            return line_for(prompt[len(text)])
        key = id(sequence.request), sequence.index
        if key not in self.answers:
            request = sequence.request
            asked = PipelineRequest(
                tokens=prompt,
                sampling=request.sampling,
                max_tokens=request.max_tokens + 1,
                min_tokens=request.sampling.min_tokens,
                seed=sequence.seed,
                stops=sequence.stops,
            )
            self.answers[key] = self.script._answer(asked), sequence
        answer = self.answers[key][0]
        made = len(text) - len(prompt)
        return line_for(answer[made] if made < len(answer) else words.EOS)


class ScriptedBackend(Engine):
    """A generation.backend.Backend."""

    def __init__(self, running=64, priority_across_clients=False, **changes):
        """changes: of the script."""
        script = Script(**changes)
        network = ScriptedNetwork(script.block_size, script)
        sizes = EngineSizes(
            blocks=script.blocks,
            block_size=script.block_size,
            context=script.context + 8,
            step_tokens=script.step_tokens,
            max_sequences=20,
            max_running=running,
            caching=script.prefix_caching,
            across=priority_across_clients,
        )
        super().__init__(network, sizes, EngineParts(clock=lambda: 0.0))
        self._speculative = bool(script.speculative)
        self.network = network
        self.vocabulary = words.vocabulary()
        self.grammars = self.image_placeholders = self.image_queue = self.long_text_encoder = None
        self.info = ModelInfo(
            vocab_size=words.VOCAB_SIZE,
            context_length=script.context,
            kv_blocks=script.blocks,
            block_size=script.block_size,
            eos_token_ids=[words.EOS],
            speculative=script.speculative,
            prefix_caching=script.prefix_caching,
            versions={},
            capabilities=sorted(set(CAPABILITIES.values())),
        )

    def encode(self, text, add_special_tokens):
        return words.encode(text, add_special_tokens)

    def decode(self, tokens, skip_special_tokens):
        return words.decode(tokens, skip_special_tokens)

    def check(self, request):
        if request.sampling.beams > self.max_sequences:
            raise BadRequest("too many beams")
        request.native = read(request, speculative=self._speculative, adapter=None)

    def _schedule(self):
        step = super()._schedule()
        if step is not None:
            self.network.sequences = [*step.decoding, *(chunk.sequence for chunk in step.chunks)]
        return step

    def busy(self):
        return not self.idle

    def count_blocks(self, plan):
        return self.blocks.total - self.blocks.available
