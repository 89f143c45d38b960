"""The server inside a Python program: the public name of features/embed."""

from .features.embed.program import *  # noqa: F403 - its names are those of the feature
