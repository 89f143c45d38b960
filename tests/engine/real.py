"""Shared by the tests on the real engine: pipelines set up so that results do not depend on the batch."""

from dataclasses import replace
from pathlib import Path

from lean_ovms.config import Config
from lean_ovms.engine.generation.sequence import GenerationRequest
from lean_ovms.engine.loading import settings
from tests.engine.rig import Replies, Rig, take_in

EXACT = {"kv_cache_precision": "f32", "plugin_config": '{"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}'}
QUESTIONS = [
    "Hello!",
    "What is the capital of France?",
    "Count from 1 to 9.",
    "Tell me a story.",
    "What is 2 + 3?",
    "Spell the word apple.",
    "Say hello in Japanese.",
    "What color is the sky?",
]
DRAFT = Path(__file__).parents[1] / "data" / "demo_draft"


def draft_model():
    """A small draft if there is one, else the model itself."""
    return str(DRAFT if DRAFT.exists() else Config().model_dir)


def chat(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def load(blocks=2000, **options):
    """A pipeline of openvino_genai, or the paged one with pipeline_type="PAGED"."""
    from lean_ovms.engine.paged import assemble
    from lean_ovms.features.genai_pipelines.child.continuous import ContinuousPipeline

    config = Config(**{**EXACT, "enable_prefix_caching": False, **options})
    paged = config.pipeline_type == "PAGED"
    made = replace(settings.resolve(config, 1 << 30, paged=paged), blocks=blocks)
    return assemble.load(config, made) if paged else ContinuousPipeline(config, made)


def outcome(rig, request):
    answer = rig.answer(request)
    return answer.tokens, answer.reasons, answer.failed


def quiet(engine, prompts, **sampling):
    """What each gets when it is alone."""
    found = []
    for prompt in prompts:
        answer = Rig(pipeline=engine).ask(prompt, **sampling)
        found.append((answer.tokens, answer.reasons, answer.failed))
    return found


def assert_empty(rig):
    stats = rig.stats()
    assert (stats.running, stats.queued, stats.kv_blocks_used) == (0, 0, 0)
    assert rig.backend.idle


def generate(backend, *requests):
    """The replies to requests that were added to a backend directly, all at once."""
    replies = {}
    for number, (sampling, fields) in enumerate(requests, 1):
        request = GenerationRequest(number, sampling, set(range(sampling.n)), details=True, **fields)
        backend.check(request)
        backend.add(request)
        replies[number] = Replies()
        replies[number].accepted = True
    while not backend.idle:
        backend.admit()
        backend.step()
        records, backend.out[:] = list(backend.out), []
        for record in records:
            take_in(replies[record.id], record)
    return list(replies.values())
