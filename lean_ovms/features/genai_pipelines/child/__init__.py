"""The pipelines, and what keeps them from what they cannot do."""
