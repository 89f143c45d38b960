"""Real models, as people have them: what depends on meaning, position and length, which random weights do not show.

`python -m tools.real_models FOLDER` fetches them, and exports them where torch is; `python -m pytest -m real` runs the
tests. What is not in the folder is skipped.
"""
