"""Put a source in quarantine, and release it: one record each.

A snapshot's is in its dataset's track, which every attempt reads before it opens; all others are in
the track of quarantines. What descends from the source is touched by neither.
`consumers` names what used a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracks_dagster.holds.effects.things import Exact, find_exact
from tracks_dagster.holds.hold import ThingKind, short_id
from tracks_dagster.holds.lineage import Thing
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.bodies import SnapshotDecision, SnapshotRef, SourceDecision
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.records import Draft, Json, Kind, Record
from tracks_dagster.track.states.dataset_state import DatasetState, SnapshotState, find_by_prefix
from tracks_dagster.track.states.quarantine_state import QuarantineState
from tracks_dagster.track.text.safe_text import check_words

SOURCES = (
    ThingKind.SNAPSHOT,
    ThingKind.CHECKPOINT,
    ThingKind.NODE,
    ThingKind.CODE,
    ThingKind.ATTEMPT,
)

NAMED_MAX = 10  # of each kind of consumer: a refusal is one record of at most 16 KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What was decided about which source. record: None when it stood so already."""

    source: Exact
    record: Record | None


def quarantine_source(
    tracks: Tracks, ledger: Ledger, thing: Thing, *, by: str, why: str
) -> Decided:
    """Let nothing new start from `thing`, or from what descends from it. Idempotent.

    Attempts that run go on. Raises UnknownRun naming the nearest, and InvalidInput for what is
    ambiguous or no source.
    """
    check_words({"why": why, "by": by})
    source = find_exact(tracks, ledger, _check_source(thing, "put in quarantine"))
    if source.snapshot is not None:
        record = quarantine_snapshot(tracks, source.snapshot, by=by, why=why)
        return Decided(source=source, record=record)
    body = SourceDecision(source=source.text, called=source.called, by=by, why=why)
    draft = tracks.draft(Kind.SOURCE_QUARANTINED, body)

    def choose(state: QuarantineState | None) -> Draft | None:
        return None if state is not None and source.text in state.in_force else draft

    return Decided(source=source, record=tracks.decide_quarantines(choose))


def release_source(tracks: Tracks, ledger: Ledger, thing: Thing, *, by: str, why: str) -> Decided:
    """End the quarantine of `thing`: what descends from it may be built upon again. Idempotent.

    A refused retry is not repeated by itself: `tracks retry` opens it. Raises as `quarantine_source`.
    """
    check_words({"why": why, "by": by})
    _check_source(thing, "released")
    source = _in_quarantine(tracks, thing) or find_exact(tracks, ledger, thing)
    if source.snapshot is not None:
        record = release_snapshot(tracks, source.snapshot, by=by, why=why)
        return Decided(source=source, record=record)
    body = SourceDecision(source=source.text, called=source.called, by=by, why=why)
    draft = tracks.draft(Kind.SOURCE_RELEASED, body)

    def choose(state: QuarantineState | None) -> Draft | None:
        return draft if state is not None and source.text in state.in_force else None

    return Decided(source=source, record=tracks.decide_quarantines(choose))


def _in_quarantine(tracks: Tracks, thing: Thing) -> Exact | None:
    """Find what is in quarantine by the name that its record has, also where its run or the ledger is
    lost."""
    state = tracks.find_quarantines()
    for text, quarantine in (state.in_force if state is not None else {}).items():
        if str(thing) in (text, quarantine.body.called):
            return Exact(kind=thing.kind, text=text, called=quarantine.body.called)
    return None


def _check_source(thing: Thing, verb: str) -> Thing:
    if thing.kind not in SOURCES:
        kinds = ", ".join(kind.value for kind in SOURCES)
        raise InvalidInput(
            f"{thing} is a {thing.kind}, which cannot be {verb}; what can: {kinds}. `tracks lineage "
            f"{thing}` shows what it comes from."
        )
    return thing


# --- of a snapshot --------------------------------------------------------------------------------
#
# A quarantine refuses every new attempt on it: of a run just declared, a retry, a branch. What trained
# on it before is named, not touched.


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumers:
    """What used a snapshot: the newest of each kind by name, and how many there are in all.

    attempts: as `RUN/aNN`; checkpoints, of these attempts: as `RUN@STEP`; evals: those on the
    snapshot and those of these checkpoints.
    """

    runs: tuple[str, ...]
    run_count: int
    attempts: tuple[str, ...]
    attempt_count: int
    checkpoints: tuple[str, ...]
    checkpoint_count: int
    evals: tuple[str, ...]
    eval_count: int

    @property
    def sentence(self) -> str:
        """All of them in words."""
        parts = [
            _words("run", self.runs, self.run_count),
            _words("attempt", self.attempts, self.attempt_count),
            _words("checkpoint", self.checkpoints, self.checkpoint_count),
            _words("eval", self.evals, self.eval_count),
        ]
        used = "; ".join(part for part in parts if part)
        return f"It was used by {used}." if used else "Nothing has used it."


def quarantine_snapshot(tracks: Tracks, ref: SnapshotRef, *, by: str, why: str) -> Record | None:
    """Let nobody train on `ref` from now on; None when that was decided before. Idempotent.

    Raises UnknownRun when there is no such snapshot.
    """
    return _decide(tracks, ref, Kind.SNAPSHOT_QUARANTINED, by=by, why=why)


def release_snapshot(tracks: Tracks, ref: SnapshotRef, *, by: str, why: str) -> Record | None:
    """Let `ref` be trained on again; None when it is not quarantined. Raises as above."""
    return _decide(tracks, ref, Kind.SNAPSHOT_RELEASED, by=by, why=why)


def find_any_snapshot(tracks: Tracks, dataset: str, snapshot_id: str) -> SnapshotRef:
    """Return the snapshot whose id begins with the given one, quarantined or not.

    Raises UnknownRun when there is none, InvalidInput when the id is too short or ambiguous.
    """
    state = tracks.find_dataset(dataset)
    if state is None:
        raise UnknownRun(f"There is no dataset {dataset!r}; `tracks snapshots list` names them.")
    found = find_by_prefix(state, snapshot_id)
    return SnapshotRef(dataset=dataset, snapshot_id=found.body.snapshot_id)


def consumers(ledger: Ledger, ref: SnapshotRef) -> Consumers:
    """Return what the ledger knows to have used `ref` directly; raises LedgerError.

    What comes of them in turn (a branch, a promotion) is not followed here.
    """
    runs, run_count = _query(ledger, ref, _RUNS)
    attempts, attempt_count = _query(ledger, ref, _ATTEMPTS)
    checkpoints, checkpoint_count = _query(ledger, ref, _CHECKPOINTS)
    evals, eval_count = _query(ledger, ref, _EVALS)
    return Consumers(
        runs=tuple(row["run_id"] for row in runs),
        run_count=run_count,
        attempts=tuple(attempt_key(row["run_id"], row["attempt_id"]) for row in attempts),
        attempt_count=attempt_count,
        checkpoints=tuple(f"{row['run_id']}@{row['step']}" for row in checkpoints),
        checkpoint_count=checkpoint_count,
        evals=tuple(f"{row['run_id']}/{row['eval_id']}" for row in evals),
        eval_count=eval_count,
    )


def _decide(tracks: Tracks, ref: SnapshotRef, kind: Kind, *, by: str, why: str) -> Record | None:
    body = SnapshotDecision(snapshot_id=ref.snapshot_id, by=by, why=why)
    draft = tracks.draft(kind, body)
    quarantines = kind is Kind.SNAPSHOT_QUARANTINED

    def choose(state: DatasetState | None) -> Draft | None:
        found = _find(state, ref)
        if found is None:
            raise UnknownRun(
                f"There is no snapshot {short_id(ref)} of dataset {ref.dataset!r}; "
                "`tracks snapshots list` names those that there are."
            )
        return None if (found.quarantined_why is not None) == quarantines else draft

    return tracks.decide_dataset(ref.dataset, choose)


def _find(state: DatasetState | None, ref: SnapshotRef) -> SnapshotState | None:
    return state.snapshot(ref.snapshot_id) if state is not None else None


_TRAINED_ON = (
    "exists (select 1 from training_attempts a where a.run_id = x.run_id and a.attempt_id = "
    "x.attempt_id and a.dataset = :dataset and a.snapshot_id = :snapshot_id)"
)
_IS_ON = "x.dataset = :dataset and x.snapshot_id = :snapshot_id"
_RUNS = ("run_id", f"training_runs x where {_IS_ON}", "declared_at desc, run_id")
_ATTEMPTS = (
    "run_id, attempt_id",
    f"training_attempts x where {_IS_ON}",
    "opened_at desc, run_id, attempt_id desc",
)
_CHECKPOINTS = (
    "run_id, step",
    f"checkpoints x where x.status <> 'deleted' and {_TRAINED_ON}",
    "committed_at desc, run_id, step desc",
)
_EVALS = (
    "run_id, eval_id, number",
    f"evals x where ({_IS_ON}) or {_TRAINED_ON}",
    "opened_at desc, run_id, eval_id, number desc",
)


def _query(
    ledger: Ledger, ref: SnapshotRef, query: tuple[str, str, str]
) -> tuple[list[dict[str, Json]], int]:
    """Return the first rows of (columns, table and condition, order), and how many there are."""
    columns, source, order = query
    given = {"dataset": ref.dataset, "snapshot_id": ref.snapshot_id}
    count = ledger.query(f"select count(*) as n from {source}", given)[0]["n"]
    sql = f"select {columns} from {source} order by {order} limit {NAMED_MAX}"
    return ledger.query(sql, given), int(count)


def _words(what: str, named: tuple[str, ...], count: int) -> str:
    if not count:
        return ""
    more = f" and {count - len(named)} more" if count > len(named) else ""
    return f"{count} {what}{'' if count == 1 else 's'} ({', '.join(named)}{more})"
