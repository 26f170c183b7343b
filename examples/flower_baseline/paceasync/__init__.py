"""pace-async as a Flower baseline."""
