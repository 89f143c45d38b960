"""Tests of the list of models."""
