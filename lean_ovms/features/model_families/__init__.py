"""Tool calls and reasoning as families of models write them, beside those of Hermes and Qwen."""
