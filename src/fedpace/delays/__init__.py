"""Delay models, one per file; availability models; and the server's delay estimator."""
