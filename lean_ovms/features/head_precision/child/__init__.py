"""Makes a network's output head smaller."""
