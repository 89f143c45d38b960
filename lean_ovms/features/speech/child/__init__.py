"""The engine child's task for models that transcribe speech."""
