"""The manifest of Anthropic's API."""

from __future__ import annotations

from ...manifest import BASES, ErrorForm, Feature, Route

HEADER = "anthropic-version"
"""A header that all of its clients send."""
CHANGING_LINES = ("x-anthropic-billing-header:",)
"""The line that Claude Code writes before its system text."""

FEATURE = Feature(
    name="anthropic",
    summary="serves Anthropic's Messages API and its batches, for Claude Code and other clients",
    title="Anthropic",
    reference="https://docs.anthropic.com/en/api/messages",
    formerly=("anthropic_batches",),
    needs=("chat",),
    flags="flags.txt",
    changing_lines=CHANGING_LINES,
    harmless=(
        *("billing_policy", "diagnostics", "fallback_credit_token", "fallbacks", "user_profile_id", "workspace_id"),
    ),
    routes=(
        Route("POST", "/messages", "api.messages:handle", BASES),
        Route("POST", "/messages/count_tokens", "api.messages:handle_count_tokens", BASES),
        Route("POST", "/messages/batches", "api.batches:handle_create", BASES, beside="batches"),
        Route("GET", "/messages/batches", "api.batches:handle_list", BASES, beside="batches"),
        Route("GET", "/messages/batches/{id}", "api.batches:handle_get", BASES, beside="batches"),
        Route("DELETE", "/messages/batches/{id}", "api.batches:handle_delete", BASES, beside="batches"),
        Route("POST", "/messages/batches/{id}/cancel", "api.batches:handle_cancel", BASES, beside="batches"),
        Route("GET", "/messages/batches/{id}/results", "api.batches:handle_results", BASES, beside="batches"),
        Route("GET", "/models", "api.models:handle_list", BASES, auth="models", header=HEADER),
        Route("GET", "/models/{id}", "api.models:handle_one", BASES, auth="models", header=HEADER),
    ),
    error_forms=(
        ErrorForm(
            name="AnthropicError",
            body="errors:anthropic_error",
            schema="errors:SCHEMA",
            paths=tuple(f"{base}/messages/" for base in BASES),
            header=HEADER,
            statuses={503: 529},
            request_id="Request-Id",
        ),
    ),
)
