"""The engine process's task for text-to-speech models, based on openvino_genai's Text2SpeechPipeline."""
