"""OpenAI's speech-to-text endpoints, as in OVMS and vLLM: they take a form with an audio file, and return text."""
