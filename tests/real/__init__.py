"""Real models, for properties that depend on meaning, position and length, which random weights do not show.

`python -m tools.real_models FOLDER` fetches them, and exports them if torch is available. `python -m pytest -m real`
runs the tests. Those whose model is missing are skipped.
"""
