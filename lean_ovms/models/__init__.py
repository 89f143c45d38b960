"""The served models, independent of HTTP."""
