"""Structured output in the paged engine: matchers of two grammar libraries, and the processes that compile."""
