"""Files that clients send in forms."""
