"""The scripted engine of --fake_engine and of tests: the paged engine on a network that knows its answers."""
