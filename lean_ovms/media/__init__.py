"""Images as pixels, from all sources that a client may name, and audio as samples. Independent of APIs and models."""
