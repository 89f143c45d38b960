"""Live transcription: WS …/realtime in OpenAI's and in vLLM's dialect."""
