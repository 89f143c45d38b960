"""Supports images and videos in prompts."""
