"""OpenAI's endpoints of speech to text, as OVMS and vLLM have them: forms with an audio file in, text out."""
