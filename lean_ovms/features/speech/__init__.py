"""Speech-to-text models, which transcribe and translate audio."""
