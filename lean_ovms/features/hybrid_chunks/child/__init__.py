"""The parts of hybrid networks that compute by chunks, in the engine process."""
