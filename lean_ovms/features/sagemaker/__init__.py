"""Amazon SageMaker's path for every request."""
