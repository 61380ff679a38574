"""What an agent may do to a run, by the policy and by what its track has of agents already. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from tracks_dagster.retry.contracts import Governance, refused
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Record

AGENT = "agent:"
DAY = timedelta(days=1)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_OTHER = re.compile(r"[^a-z0-9._-]+")


def actor(name: str) -> str:
    """Return in whose name the acts of an agent are recorded: "agent:" and its name in small letters.

    Raises InvalidInput for a name of which nothing is left.
    """
    plain = _OTHER.sub("-", name.lower()).strip("-._")[:40]
    if not _NAME.fullmatch(plain):
        raise InvalidInput(f"The agent's name {name!r} has no letter or digit; give --name NAME.")
    return AGENT + plain


def check_act(governance: Governance, act: str, records: Iterable[Record], now: datetime) -> None:
    """Raise InvalidInput where the policy lets no agent do that, or not today.

    act: of `contracts.AGENT_ACTS`; records: of the run's track, in which agents count together.
    """
    may = governance.agents_may
    if act not in may:
        words = f"an agent may {' and '.join(may)} only" if may else "an agent may only read"
        raise refused("governance.agents_may", f"{act}: {words}. Ask a person to do it.")
    done = sum(_is_by_agent(each) and now - each.at < DAY for each in records)
    if done >= governance.agent_acts:
        raise refused(
            "governance.agent_acts",
            f"{act}: agents did {done} things to this run within a day, and {governance.agent_acts} "
            "is the most. Ask a person to do it.",
        )


def _is_by_agent(record: Record) -> bool:
    return str(record.body.get("by") or record.body.get("decided_by")).startswith(AGENT)
