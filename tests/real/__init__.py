"""Real models, as people have them: what depends on meaning, position and length, which random weights do not show.

`python -m tools.real_models FOLDER` fetches them; `python -m pytest -m real` runs these tests. What is not in the
folder is skipped.
"""
