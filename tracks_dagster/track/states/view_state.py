"""The saved views of the table of all runs: a pure fold over the one track of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from tracks_dagster.track.bodies import ViewRemoved, ViewSaved
from tracks_dagster.track.body_json import body_of
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.records import Kind, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedView:
    """The newest `view_saved` of a name. removed, removed_at: None while it is offered."""

    seq: int
    at: datetime
    body: ViewSaved
    removed: ViewRemoved | None = None
    removed_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """The newest view of each name, the one saved first first. `head` is the last record folded."""

    head: Record
    views: tuple[SavedView, ...] = ()

    @property
    def offered(self) -> tuple[SavedView, ...]:
        """Those that are not removed."""
        return tuple(view for view in self.views if view.removed is None)

    def find(self, name: str) -> SavedView | None:
        """Return the view of that name, a removed one too; None where there was none."""
        return next((view for view in self.views if view.body.name == name), None)


def fold(records: Iterable[Record], state: ViewState | None = None) -> ViewState | None:
    """Return the state after `records`, starting from `state`; None for an empty track."""
    for record in records:
        state = apply(state, record)
    return state


def apply(state: ViewState | None, record: Record) -> ViewState:
    """Return the state after one more record; raises TrackBroken for one that cannot come next."""
    before = state.views if state is not None else ()
    match record.kind:
        case Kind.VIEW_SAVED:
            body = body_of(ViewSaved, record)
            others = tuple(view for view in before if view.body.name != body.name)
            added = SavedView(seq=record.seq, at=record.at, body=body)
            return ViewState(head=record, views=(*others, added))
        case Kind.VIEW_REMOVED if state is not None:
            removed = body_of(ViewRemoved, record)
            views = (
                replace(view, removed=removed, removed_at=record.at)
                if view.body.name == removed.name and view.removed is None
                else view
                for view in before
            )
            return ViewState(head=record, views=tuple(views))
        case Kind.NOTE | Kind.ALERT if state is not None:
            return replace(state, head=record)
        case _:
            raise TrackBroken(
                f"Record {record.seq} ({record.kind}) does not belong there in the track of views."
            )
