"""Delay models, one file each; who is there at all; and what a server can know of both."""
