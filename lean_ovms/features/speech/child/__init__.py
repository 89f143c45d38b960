"""The task of the engine process for models that transcribe speech."""
