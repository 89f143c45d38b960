"""For tests on the real engine: pipelines that are set up so that results do not depend on the batch."""

import hashlib
import json
import re
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lean_ovms.config import Config
from lean_ovms.engine.generation.fair_queue import GenerationRequest
from lean_ovms.engine.loading import settings
from lean_ovms.repository import model_file
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
TOKENIZERS = {}
"""Loaded tokenizers by the content of their files. Loading one takes as long as compiling a small network twice."""
COMPILED = {}
"""The networks that compile_shared has compiled, by their content; the last one used is at the end."""
MOST_COMPILED = 8
COUNTED = re.compile(rb' name="[^"]*_\d+"|"(?:Parameter|Result)_\d+"')
"""The names that OpenVINO gives to operations without one, by counting all that this process has made."""
MEMORY = Path("/dev/shm")
"""A directory that is in memory on most machines."""
DRAFT = Path(__file__).parents[1] / "data" / "demo_draft"


def draft_model():
    """Returns a small draft model if there is one, else the model itself."""
    return str(DRAFT if DRAFT.exists() else Config().model_dir)


def chat(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def said_of_tokens(directory):
    """Returns what determines a directory's tokenizer: its files, and the ids in config.json."""
    found = {}
    for path in sorted(directory.iterdir()):
        if path.name == "config.json":
            known = json.loads(path.read_text())
            found |= {name: str(value) for name, value in known.items() if name.endswith("token_id")}
        elif path.is_file() and (path.suffix not in (".xml", ".bin") or "tokenizer" in path.name):
            found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return tuple(found.items())


def compile_shared(core, read, device, properties):
    """Compiles a network, or returns an earlier one whose bytes and properties were the same.

    The options of the scheduler change nothing in a network, so a test with many of them can compile it once.
    """
    import openvino as ov

    model = read()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        files = [Path(directory, name) for name in ("x.xml", "x.bin")]
        ov.serialize(model, *files)
        graph, weights = (path.read_bytes() for path in files)
    found = hashlib.sha256(COUNTED.sub(b"", graph) + weights).digest()
    key = (found, device, repr(sorted(properties.items())))
    COMPILED[key] = COMPILED.pop(key, None) or core.compile_model(model, device, properties)
    if len(COMPILED) > MOST_COMPILED:
        del COMPILED[next(iter(COMPILED))]
    return COMPILED[key]


def compiled_once(*given, shared=False, separate_prefill_model=False, **more):
    """Returns a PagedModel without a second network for steps with prompts."""
    from lean_ovms.engine.paged.model import PagedModel

    return PagedModel(*given, **more | ({"compiler": compile_shared} if shared else {}))


def assembled(*given, compiled_twice=True, shared=False):
    """Returns what assemble.load returns, with a tokenizer that is loaded only once.

    `compiled_twice` says whether a small network has a second one for steps with prompts, as in a server, and `shared`
    whether it may be one that an earlier test has compiled.
    """
    from lean_ovms.engine.paged import assemble
    from lean_ovms.features.drafting.child import network_drafts

    load_new = assemble._load_tokenizer

    def load_once(directory, *files):
        if not directory.is_dir():
            return load_new(directory, *files)
        key = said_of_tokens(directory)
        if key not in TOKENIZERS:
            TOKENIZERS[key] = load_new(directory, *files)
        return TOKENIZERS[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assemble, "_load_tokenizer", load_once)
        for module in () if compiled_twice else (assemble, network_drafts):
            patch.setattr(module, "PagedModel", partial(compiled_once, shared=shared))
        return assemble.load(*given)


def load(blocks=2000, *, compiled_twice=True, shared=False, **options):
    """Returns a pipeline of openvino_genai, or the paged one with pipeline_type="PAGED"."""
    from lean_ovms.features.genai_pipelines.child.continuous import ContinuousPipeline

    config = Config(**{**EXACT, "enable_prefix_caching": False, **options})
    paged = config.pipeline_type == "PAGED"
    with model_file.reading_once(config):
        made = replace(settings.resolve(config, 1 << 30, paged=paged), blocks=blocks)
        if not paged:
            return ContinuousPipeline(config, made)
        return assembled(config, made, compiled_twice=compiled_twice, shared=shared)


def outcome(rig, request):
    answer = rig.answer(request)
    return answer.tokens, answer.reasons, answer.failed


def quiet(engine, prompts, **sampling):
    """Returns the results of each prompt when it runs alone."""
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
    """Returns the replies to requests that are added to a backend directly, all at once."""
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
