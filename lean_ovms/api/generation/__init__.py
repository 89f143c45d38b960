"""Holds the parts that every API that generates text shares."""
