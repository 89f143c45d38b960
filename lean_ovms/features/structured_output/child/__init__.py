"""Grammars in the engine process: checked, compiled, and the queue of requests that wait for that."""
