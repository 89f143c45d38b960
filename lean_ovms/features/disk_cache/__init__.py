"""The prefix cache on disk: what is computed of prompts outlives memory and restarts."""
