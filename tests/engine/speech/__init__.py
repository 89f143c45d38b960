"""Tests of engine/speech."""
