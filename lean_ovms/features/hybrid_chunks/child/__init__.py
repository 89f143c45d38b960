"""Networks with states, changed in the engine process."""
