"""Admission policies: one file per policy, with the registered name."""
