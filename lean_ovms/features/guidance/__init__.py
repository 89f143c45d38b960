"""Grammars in the paged engine by llguidance."""
