"""Chat completions: the next message of a conversation, in the form of OpenAI's API."""
