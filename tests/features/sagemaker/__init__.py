"""Tests of Amazon SageMaker's path."""
