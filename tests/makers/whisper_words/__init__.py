"""Makes tests/data/whisper_words.zip: a small Whisper that knows 40 synthetic words, and recordings for the tests."""
