"""The vocabulary: what every package shares. Standard library only."""
