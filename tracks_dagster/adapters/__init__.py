"""What talks to the world: object stores, the ledger, launchers. They translate, and decide nothing."""
