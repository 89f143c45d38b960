"""The public name of features/embed, the server inside a Python program."""

from .features.embed.program import *  # noqa: F403 - its names are those of the feature
