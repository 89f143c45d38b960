"""The list of all features, in the order in which they are composed. A new one is its folder and its name here.

Of two tasks whose recognizers take the same model, that of the earlier feature wins.
"""

NAMES: tuple[str, ...] = (
    "chat",
    "completions",
    "models",
    "media_files",
    "voice",
    "speech",
    "websocket",
    "realtime",
    "images",
    "pooling",
    "hub",
    "ovms_files",
    "responses",
    "response_sockets",
    "mcp",
    "batches",
    "anthropic",
    "anthropic_batches",
    "ollama",
    "llama_cpp",
    "vllm_extras",
    "sagemaker",
    "decisions",
    "ovms_admin",
    "cohere",
    "tei",
    "vision",
    "audio_chat",
    "genai_pipelines",
    "disk_cache",
    "slots",
    "kv_events",
    "replicas",
    "prewarm",
    "named_keys",
    "traces",
    "web_page",
    "docs_page",
    "pdf",
    "launch",
    "terminal",
    "bench",
    "drafting",
    "lora",
    "gguf",
    "xgrammar",
    "head_precision",
    "hybrid_chunks",
)
"""The names of the features, which are those of their folders."""

HOSTS = ("embed", "asgi", "ray", "llm")
"""The features that have a server in them, instead of being a part of one, so that --without does not know them."""
