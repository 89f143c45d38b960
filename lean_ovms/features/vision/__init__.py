"""Images and videos in prompts."""
