"""Models, one file each. A model is a frozen dataclass of options that builds a torch module."""
