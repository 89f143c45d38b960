"""The path that Amazon SageMaker uses for every request."""
