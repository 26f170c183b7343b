"""Digits on nodes that really sleep: what benchmarks/flower_seconds.py runs."""
