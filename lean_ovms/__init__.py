"""lean_ovms: OpenVINO Model Server's and vLLM's generative REST APIs on openvino-genai, with little in between."""

__version__ = "0.1.0"
