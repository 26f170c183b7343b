"""The simulator: synchronous rounds under a virtual clock."""
