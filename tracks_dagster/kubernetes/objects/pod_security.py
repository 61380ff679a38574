"""What every pod of ours is denied: as much as any image can do without.

The user is the image's own: a number that is set here could not write to the volumes of images that run
as another. A template, or `run_worker` of the settings, may say more or less.
"""

from __future__ import annotations

from tracks_dagster.track.records import Json

POD: Json = {"seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER: Json = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
