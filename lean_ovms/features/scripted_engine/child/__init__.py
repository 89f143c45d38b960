"""The scripted engine of --fake_engine and of tests: the paged engine with a network whose answers are given."""
