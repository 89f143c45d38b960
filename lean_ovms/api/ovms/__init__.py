"""OpenVINO Model Server's own endpoints."""
