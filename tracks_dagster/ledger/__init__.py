"""The ledger, the SQL projection of all tracks: which rows a state becomes, and where time went."""
