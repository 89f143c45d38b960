"""Proposes draft tokens by a draft model, a head of the model, or the text itself."""
