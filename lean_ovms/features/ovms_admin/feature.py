"""The manifest of OpenVINO Model Server's own endpoints."""

from __future__ import annotations

from ...manifest import BASES, Feature, Route

FEATURE = Feature(
    name="ovms_admin",
    summary="serves OpenVINO Model Server's endpoints for model status and configuration, and KServe's for health",
    title="OpenVINO Model Server",
    reference="https://github.com/openvinotoolkit/model_server/blob/main/docs/model_server_rest_api_tfs.md",
    routes=(
        Route("GET", "/config", "api.config:handle", BASES, auth="models"),
        Route("POST", "/config/reload", "api.config:handle_reload", BASES, changes=True),
        Route("GET", "/v2", "api.kserve:handle_server", auth="open"),
        Route("GET", "/v2/health/live", "api.kserve:handle_live", auth="open", vital=True),
        Route("GET", "/v2/health/ready", "api.kserve:handle_ready", auth="open", vital=True),
        Route("GET", "/v2/models/{id}/ready", "api.kserve:handle_model_ready", auth="models", vital=True),
    ),
)
