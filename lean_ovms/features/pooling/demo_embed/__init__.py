"""The embedded default model for embeddings: data only, made by `python -m tools.make_demo_embed`.

README.md is its card. It is a package so that it gets into the wheel. engine_info.json is what its engine reports, so
that the engine need not run before the first request.
"""
