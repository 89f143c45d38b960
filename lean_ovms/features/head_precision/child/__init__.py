"""What makes a network's output head smaller."""
