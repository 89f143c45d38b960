"""Structured output in the paged engine: its matchers, and the grammar libraries that features have."""
