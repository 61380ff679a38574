"""What of a pod's watch event matters to a reader: everything but times, names and ids.

`recorded.json` holds, in this form, what a Kubernetes 1.34.9 said in these cases; the double is
compared with it field by field.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.wings.kubernetes.double.answers import Json

_TIMES = frozenset({"startedAt", "finishedAt"})


def telling(kind: str, pod: Json) -> Json:
    """Return the event's telling fields; a field that is not there is None."""
    meta, status = pod["metadata"], pod["status"]
    return {
        "type": kind,
        "grace_s": meta.get("deletionGracePeriodSeconds"),
        "tracked": bool(meta.get("finalizers")),
        "phase": status["phase"],
        "reason": status.get("reason"),
        "message": status.get("message"),
        "seen": status.get("observedGeneration"),
        "conditions": [
            [c["type"], c["status"], c.get("reason"), c.get("message"), c.get("observedGeneration")]
            for c in status.get("conditions", ())
        ],
        "containers": [_container(c) for c in status.get("containerStatuses", ())],
    }


def recorded(case: str) -> list[Json]:
    """Return the recorded events of a case."""
    text = Path(__file__).with_name("recorded.json").read_text(encoding="utf-8")
    found: list[Json] = json.loads(text)[case]
    return found


def _container(status: Json) -> Json:
    ((kind, state),) = status["state"].items()
    result = {name: value for name, value in state.items() if name not in _TIMES}
    return {
        "state": {kind: result},
        "ready": status["ready"],
        "started": status.get("started"),
        "restarts": status["restartCount"],
    }
