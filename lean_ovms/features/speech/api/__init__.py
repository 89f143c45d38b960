"""OpenAI's speech-to-text endpoints, as OVMS and vLLM have them: they take a form with an audio file,
and return text."""
