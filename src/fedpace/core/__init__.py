"""The contract, the session, random streams, checks and errors: NumPy only."""
