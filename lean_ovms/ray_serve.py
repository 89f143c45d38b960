"""The public name of features/ray, the server as a Ray Serve deployment."""

from .features.ray.deployment import *  # noqa: F403 - its names are those of the feature
