"""Data sets spread over clients: one file each, as plain arrays."""
