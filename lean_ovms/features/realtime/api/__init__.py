"""Transcription while somebody speaks: WS …/realtime in OpenAI's and vLLM's dialect."""
