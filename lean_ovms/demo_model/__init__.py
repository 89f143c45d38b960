"""The embedded default model: data only, made by `python -m tools.demo_model`.

It is a package so that it gets into the wheel.
"""
