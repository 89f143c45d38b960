"""Which folder may import what. tests/conventions/test_layout.py holds the package to it."""

from __future__ import annotations

BASE = {"types", "errors", "manifest", "composition"}
OBSERVED = BASE | {"observability"}
TEXT = {"text.decode", "text.template"}
DOORS = {"__init__", "asgi", "embed", "ray_serve"}
"""The public names of features that programs and hosts import: the only modules of the core that know a feature."""
ALLOWED: dict[str, set[str]] = {
    **{door: {"features", "_version"} for door in sorted(DOORS)},
    "_version": set(),
    "types": set(),
    "errors": {"types"},
    "model_files": {"util"},
    "manifest": {"model_files"},
    "composition": {"errors", "manifest", "features", "model_files", "types"},
    "config": {"errors", "composition", "manifest"},
    "util": {"errors"},
    "observability": BASE,
    "transports": OBSERVED | {"config", "util"},
    "repository": OBSERVED | {"config", "util", "model_files"},
    "media": OBSERVED | {"config", "util"},
    "text.decode": BASE,
    "grammar": BASE,
    "text.template": BASE | {"repository", "util"},
    "text": set(),
    "engine": set(),
    "engine.protocol": {"engine.record"},
    "engine.record": set(),
    "engine.errors": BASE,
    "engine.task": BASE | {"engine.errors", "engine.protocol"},
    "engine.client": OBSERVED | {"engine.protocol", "engine.record", "config", "util"},
    "engine.generation": BASE | {"engine.task", "engine.protocol", "engine.errors", "config", "util"},
    "engine.loading": BASE | {"engine.errors", "repository", "config", "util"},
    "engine.paged": BASE
    | {"repository", "util"}
    | {"engine.loading", "engine.generation", "engine.protocol", "engine.record", "engine.errors", "config"},
    "engine.worker": OBSERVED
    | {"engine.worker.loop", "engine.task", "engine.protocol", "engine.record", "engine.errors", "engine.generation"}
    | {"engine.loading", "engine.paged", "repository"}
    | {"config", "util"},
    "engine.worker.loop": {"engine.protocol", "engine.task", "util"},
    "models": OBSERVED | TEXT | {"engine.client", "engine.protocol", "grammar", "repository", "config", "util"},
    "api": OBSERVED | {"models", "media", "config", "util", "_version"},
    "api.generation": OBSERVED | {"api", "models", "media", "config", "util"},
    "demo_model": set(),
}
"""What a module or a folder may import, by the longest name that fits; its own folder always."""
EVERYTHING = {"features", "server", "cli", "__main__"}

FOREIGN = {
    "mmap": {  # a process ends that reads what was cut off a mapped file: none of these is the server's
        "engine/loading/weight_pages.py",
        "features/gguf/child/",
        "features/media_files/audio/decoder_process.py",
    },
    "h11": {"transports/http11/", "features/media_files/images/fetch.py"},
    "PIL": {
        "features/media_files/images/pillow.py",
        "features/media_files/images/video.py",
        "media/pixels.py",
        "features/images/child/task.py",
    },
    "uvloop": {"server/run.py"},
    "jinja2": {"text/template/"},
    "openvino": {
        "features/structured_output/child/genai/compiler.py",
        "features/genai_pipelines/child/",
        "engine/loading/",
        "engine/paged/capped_attention.py",
        "engine/paged/ir_weights.py",
        "engine/paged/model.py",
        "engine/paged/network.py",
        "features/gguf/child/",
        "features/pooling/child/model.py",
        "features/pooling/child/tokenizer.py",
        "engine/paged/input_embeddings.py",
        "features/vision/child/networks.py",
        "features/pooling/child/network.py",
        "features/pooling/child/pooling_graph.py",
        "features/speech/child/silero_vad.py",
        "features/speech/child/whisper_network.py",
        "features/voice/child/pipeline.py",
        "features/drafting/child/heads.py",
        "features/lora/child/adapter_layers.py",
        "features/compiled_cache/child/",
        "features/head_precision/child/",
        "features/hybrid_chunks/child/",
        "features/images/child/pipeline.py",
    },
    "openvino_genai": {
        "features/structured_output/child/genai/",
        "features/genai_pipelines/child/",
        "engine/loading/",
        "engine/paged/assemble.py",
        "features/speech/child/pipeline.py",
        "features/voice/child/pipeline.py",
        "features/images/child/pipeline.py",
        "features/lora/child/reading.py",
    },
    "openvino_tokenizers": {"engine/loading/"},
    "tokenizers": {"features/gguf/child/tokenizer.py", "engine/loading/json_tokenizer.py"},
    "numpy": {
        "features/scripted_engine/child/",
        "features/genai_pipelines/child/",
        "engine/loading/",
        "engine/paged/",
        "features/pooling/child/",
        "features/speech/child/",
        "features/voice/child/",
        "features/images/child/pipeline.py",
        "features/disk_cache/child/",
        "features/gguf/child/",
        "features/beam_search/child/",
        "features/drafting/child/",
        "features/lora/child/",
        "features/head_precision/child/",
        "features/hybrid_chunks/child/",
        "features/slots/child/",
        "features/vision/child/",
        "features/guidance/child/",
        "features/structured_output/child/",
        "features/xgrammar/child/",
        "features/realtime/live_decoder.py",
        "features/media_files/audio/",
        "media/pixels.py",
        "features/pooling/vectors.py",
    },
    "soundfile": {"features/media_files/audio/"},
    "soxr": {
        "features/media_files/audio/decode.py",
        "features/realtime/live_decoder.py",
        "features/voice/child/task.py",
    },
    "av": {"features/media_files/audio/decode.py", "features/media_files/containers.py"},
    "python_multipart": {"features/uploads/forms.py"},
    "websockets": {"features/websocket/frames.py"},
    "llguidance": {"features/guidance/child/library.py"},
    "tvm_ffi": {"features/xgrammar/child/core.py"},
    "starlette": {"features/ray/"},
    "tqdm": {"features/llm/"},
    "ray": {"features/ray/"},
    "huggingface_hub": {"features/hub/"},
    "google": {"features/ovms_files/"},
    "cryptography": {"features/responses/sealing.py"},
    "psycopg": {"features/responses/postgres.py"},
    "opentelemetry": {"features/traces/"},
    "msgspec": {"features/kv_events/child/publisher.py"},
    "zmq": {"features/kv_events/child/publisher.py"},
    "mcp": {"features/mcp/api.py", "features/mcp/sessions.py"},
    "httpx2": {"features/mcp/sessions.py"},
    "pypdf": {"features/pdf/reader_process.py"},
    "sqlite3": {"features/responses/sqlite.py"},
}
"""Who may import what is not ours."""


def rule_of(module: str) -> str:
    """The longest name in ALLOWED or EVERYTHING that is `module` or a folder above it."""
    parts = module.split(".")
    names = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    found = [name for name in names if name in ALLOWED or name in EVERYTHING]
    return found[0] if found else parts[0]
