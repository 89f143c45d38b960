"""Grammars in the engine process: checking and compiling them, and the queue of requests that wait for that."""
