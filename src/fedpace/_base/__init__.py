"""Helpers for all layers: errors, argument checks, random streams and files. It imports no other part of fedpace."""
