"""The parts of tools/soak.py."""
