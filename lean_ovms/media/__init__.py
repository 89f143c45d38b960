"""Images from wherever a client may point to, as pixels, and audio files as samples. Knows no API, model and engine."""
