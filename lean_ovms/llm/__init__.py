"""Models in a Python program: LLM, AsyncLLM, SamplingParams, and the outputs that they return. docs/python.md."""
