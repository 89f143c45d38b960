"""What changes networks with states, in the engine process."""
