"""The list of served models, in the form of OpenAI's API."""
