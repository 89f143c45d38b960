"""Chat completions: the next message of a conversation, as in OpenAI's API."""
