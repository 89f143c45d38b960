"""Side doors: other hosts for the same app."""
