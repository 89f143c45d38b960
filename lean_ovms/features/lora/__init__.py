"""LoRA adapters, each of which is served as a model of its own beside its base model."""
