"""The app as a Ray Serve deployment: the public name of features/ray."""

from .features.ray.deployment import *  # noqa: F403 - its names are those of the feature
