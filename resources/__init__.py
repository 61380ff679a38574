"""Where this repository's deployment keeps its work: the store and home that its environment names.

How the resources are made is written once for every deployment, in `tracks_dagster/defs/resources/`.
"""

from tracks_dagster.settings import usable_prefix

PREFIX = usable_prefix()  # of all its names in Dagster
