"""The engine child's task for models that speak texts, on openvino_genai's Text2SpeechPipeline."""
