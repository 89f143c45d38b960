"""A model repository on disk: what can be served in it, its config.json, the graphs of its models. Serves nothing."""
