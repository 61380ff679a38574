"""Every track of a store, and the projector that keeps the ledger up to date."""
