"""The embedded default model, data that `python -m tools.demo_model` makes; as a package it gets into the wheel."""
