"""LoRA adapters: each is served as a model of its own, beside the model that it adapts."""
