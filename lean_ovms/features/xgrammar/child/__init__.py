"""The part of the engine process: what compiles and matches grammars."""
