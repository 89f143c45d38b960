"""The name of this program, and its version."""

__version__ = "0.1.0"

ABOUT = (
    "A small, fast server of OpenVINO models on Intel CPUs, with the APIs of OpenAI, Anthropic, Ollama, vLLM and OVMS."
)
"""What this program is: the sentence of the README, of --help and of the API's description."""
