"""Selection schemes: one file each, named as it is registered. Modules that start with `_` are shared helpers."""
