"""fedpace: whom to wait for in federated learning."""
