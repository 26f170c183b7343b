"""Server steps: one file a rule, named as it is registered."""
