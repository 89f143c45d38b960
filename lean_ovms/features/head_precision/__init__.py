"""A language model's output head in fewer bits than its file has."""
