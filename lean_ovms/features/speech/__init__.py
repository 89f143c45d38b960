"""Speech-to-text models: they transcribe and translate audio."""
