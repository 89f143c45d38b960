"""Writing a model repository: its config.json, the graphs of its models. Serves nothing."""
