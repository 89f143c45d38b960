"""The front end's client of an engine process: starts and restarts it, submits requests and receives replies."""
