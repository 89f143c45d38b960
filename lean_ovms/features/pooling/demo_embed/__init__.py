"""The embedded default model for embeddings: data only, made by `python -m tools.make_demo_embed`.

README.md is the model card. The folder is a Python package so that the wheel contains it. engine_info.json has the info
that the engine would report, so that the engine need not run before the first request.
"""
