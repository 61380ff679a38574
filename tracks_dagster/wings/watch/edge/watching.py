"""What the core asks of this wing: `Watching` of `review/effects/watching.py`."""

from __future__ import annotations

import os

from tracks_dagster.retry.contracts import Contracts
from tracks_dagster.review.effects.watching import FindFile
from tracks_dagster.wings.watch.edge.notify_settings import VARIABLE, read_file
from tracks_dagster.wings.watch.health.effects.looking import look_back
from tracks_dagster.wings.watch.health.effects.watch import watch_machine
from tracks_dagster.wings.watch.notifying import delivery

__all__ = ["check_notified", "look_back", "watch_machine"]


def check_notified(contracts: Contracts, stage: str, team: str, find: FindFile) -> None:
    """Raise InvalidInput where the policy asks that alerts of a stage reach somebody, and red ones of
    this team would not."""
    delivery.check_notified(contracts, stage, team, lambda: read_file(find(VARIABLE), os.environ))
