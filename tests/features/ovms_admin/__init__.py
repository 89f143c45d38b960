"""Tests of OpenVINO Model Server's own endpoints."""
