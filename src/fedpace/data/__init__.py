"""Federated data sets, one file each. A data set is a frozen dataclass of options that builds arrays per client."""
