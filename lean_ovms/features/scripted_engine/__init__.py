"""An engine without a model, whose answers follow a script."""
