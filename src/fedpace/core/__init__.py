"""The core: types and protocols, ledger, coordinator, session and server step. It needs only NumPy."""
