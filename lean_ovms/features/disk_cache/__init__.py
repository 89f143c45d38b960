"""The prefix cache on disk, which is larger than memory and outlives restarts."""
