"""The list of the models that are served, in the form of OpenAI's API."""
