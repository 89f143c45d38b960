"""What every API that generates text has in common."""
