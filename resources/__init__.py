"""The resources of this repository's own deployment; the code is in tracks_dagster/defs/resources/."""
