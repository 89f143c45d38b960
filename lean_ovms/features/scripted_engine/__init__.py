"""An engine that answers by a script, without a model."""
