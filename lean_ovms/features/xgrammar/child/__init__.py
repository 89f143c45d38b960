"""The part that runs in the engine process: compiling and matching grammars."""
