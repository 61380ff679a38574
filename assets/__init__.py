"""The assets of this repository's own deployment; the code is in tracks_dagster/defs/assets/."""
