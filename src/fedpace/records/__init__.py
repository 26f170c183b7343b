"""A run on disk: written as it goes, read back typed."""
