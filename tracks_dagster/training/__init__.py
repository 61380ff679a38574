"""What runs inside the gang: joining an attempt, sampling, checkpoints, journals.

Ranks talk to the object store only: no database, no Dagster, no Kubernetes. Importing this package
imports no torch; `attempt` and most modules do, `manifest` and `export` do not. The public way in is
`from tracks_dagster.training import attempt as tracks` and `tracks.join()`.
"""
