"""The embedded default model: data only, made by `python -m tools.demo_model`. Being a package gets it into the wheel."""
