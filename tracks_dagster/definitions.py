"""The Dagster code location that `tracks up` serves: this home's projects and the examples.

It loads neither torch nor the cluster's client, and touches no store: what it names is built when it is
first used. It reads the files of this home's projects, for their schedules and the launchpad: another
one is there after a reload.
"""

from tracks_dagster.factory import build_defs
from tracks_dagster.settings import usable_prefix

defs = build_defs(prefix=usable_prefix(), added=True, examples=True, exports_curves=None)
