"""`tracks board`: the pages on which a run is watched while it trains.

Only reads. What a page shows is computed at the top, purely; `effects/` reads, draws and serves.
"""
