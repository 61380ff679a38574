"""How people find a run again: its tags, its name for people, whether it is archived. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.track.bodies import RunLabelled
from tracks_dagster.track.body_json import body_of
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Record

TAGS_MAX = 32  # of one run
NAME_MAX = 120  # characters of a name for people
_TAG = re.compile(r"[A-Za-z0-9][\w.-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """tags: in the order of the alphabet. name: for people, "" for none. archived_at: None where it is
    not; archived_seq: of that record."""

    tags: tuple[str, ...] = ()
    name: str = ""
    archived_at: datetime | None = None
    archived_seq: int = -1


def labelled(labels: Labels, record: Record) -> Labels:
    """Return the labels after a `run_labelled`."""
    body = body_of(RunLabelled, record)
    is_archived = labels.archived_at is not None if body.is_archived is None else body.is_archived
    is_new = is_archived and body.is_archived is not None
    return Labels(
        tags=tuple(sorted({*labels.tags, *body.added} - {*body.removed})),
        name=labels.name if body.called is None else body.called,
        archived_at=record.at if is_new else labels.archived_at if is_archived else None,
        archived_seq=record.seq if is_new else labels.archived_seq,
    )


def check_tag(tag: str) -> str:
    """Return it; raises InvalidInput for what is not a tag."""
    if _TAG.fullmatch(tag) is None:
        raise InvalidInput(
            f"{tag[:60]!r} is not a tag: write 1 to 40 letters, digits, '_', '-' or '.', the first one "
            "a letter or a digit."
        )
    return tag
