"""Models: one file each. Each is a frozen dataclass of options that builds a torch module."""
