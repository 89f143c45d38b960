"""Images from wherever a client may point to, as pixels. Knows no API, no model and no engine."""
