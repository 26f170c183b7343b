"""Handwritten digits on Flower, with nodes and weights chosen by fedpace."""
