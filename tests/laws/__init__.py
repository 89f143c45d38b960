"""Laws: what holds for every file of a kind."""
