"""The manifest of vLLM's further endpoints."""

from __future__ import annotations

from ...manifest import BASES, EVERYWHERE, LOAD_REPORTS, Feature, PartRow, Route

FEATURE = Feature(
    name="vllm_extras",
    summary=(
        "serves vLLM's endpoints for tokens, token ids, batches of conversations, generative scores, load and sleep"
    ),
    title="vLLM: token ids, batches of conversations, load and sleep",
    reference="https://docs.vllm.ai/en/stable/serving/online_serving/",
    needs=("deployment", "chat", "completions"),
    flags="flags.txt",
    harmless=("session_id", "stream_interval", "mm_payload"),
    parts=(PartRow(seam=LOAD_REPORTS, make="load_report:add"),),
    routes=(
        Route("POST", "/chat/completions/batch", "api.chat_batch:handle", BASES),
        Route("POST", "/chat/completions/render", "api.render:handle_chat", BASES),
        Route("POST", "/completions/render", "api.render:handle_completions", BASES),
        Route("POST", "/generative_scoring", "api.generative_scoring:handle", EVERYWHERE),
        Route("POST", "/inference/v1/generate", "api.generate:handle"),
        Route("GET", "/load", "api.load:handle", auth="open", vital=True),
        Route("POST", "/sleep", "api.sleep:handle_sleep", changes=True, lasting="sleep"),
        Route("POST", "/wake_up", "api.sleep:handle_wake_up", changes=True, lasting="sleep"),
        Route("GET", "/is_sleeping", "api.sleep:handle_is_sleeping"),
        Route("POST", "/pause", "api.sleep:handle_pause", changes=True, lasting="sleep"),
        Route("POST", "/resume", "api.sleep:handle_resume", changes=True, lasting="sleep"),
        Route("GET", "/is_paused", "api.sleep:handle_is_paused"),
        Route("POST", "/tokenize", "api.tokenize:handle", EVERYWHERE),
        Route("POST", "/detokenize", "api.tokenize:handle_detokenize", EVERYWHERE),
        Route("GET", "/tokenizer_info", "api.tokenize:handle_info"),
    ),
)
