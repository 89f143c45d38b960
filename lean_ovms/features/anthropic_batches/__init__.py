"""Batches of Anthropic's messages, which are batches of OpenAI's API in another outer form."""
