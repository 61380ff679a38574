"""Ancestors and descendants of a thing, by the ledger: one statement each, however many there are.

Counts are of everything, names only of the newest. As of a time, only records up to then count: an
open attempt consumed what its newest commit by then says, and resumed from what was known then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from tracks_dagster.holds.effects.things import Exact, as_it_was
from tracks_dagster.holds.hold import ThingKind
from tracks_dagster.holds.lineage import Consumed, checkpoint_name, skipped_samples
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.timeline import micros
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.records import Json, format_time

NAMED_MAX = 10  # of each kind
RUNS_MAX = 100  # whose clean attempts and checkpoints are named: those reached last
PROMOTED_MAX = 1000  # checkpoints that are looked for in Dagster
LINKS_MAX = 1000  # attempts that one thing is followed back over

DESCENDANTS = Path(__file__).with_name("descendants.sql")
ANCESTORS = Path(__file__).with_name("ancestors.sql")
ALWAYS = datetime(9999, 1, 1, tzinfo=UTC)  # later than any record
_MANIFESTS = "select seq, manifest_sha256 from promotions where run_id = :run_id and promoted"
Row = Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """One thing by its name. status: of a checkpoint or promotion, else empty; at: of its record;
    detail: what else there is to say of it."""

    thing: str
    at: str
    status: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All of one kind. counts: by status where the kind has one; newest: at most NAMED_MAX."""

    count: int = 0
    counts: Mapping[str, int] | None = None
    newest: tuple[Named, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Descendants:
    """Everything downstream of a source. promotions: those that an alias names now come first.

    idle: attempts that were opened on the snapshot and consumed nothing; apart: the other attempts of
    the same runs; spared: checkpoints of these runs. All three descend from nothing of the source.
    """

    run_count: int
    attempts: Group
    checkpoints: Group
    evals: Group
    promotions: Group
    idle: Group
    apart: Group
    spared: Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestor:
    """One attempt that a thing rests on. up_to_step: of its checkpoint that the next one resumed from,
    None for the newest state; did_work: whether a step of its own is in that.

    consumed: what it used for it; None where it used nothing. snapshot: None where it named none.
    reason: the newest reading of its end by then; None while it was open.
    """

    attempt: str
    up_to_step: int | None
    from_step: int
    did_work: bool
    consumed: Consumed | None
    snapshot: str | None
    nodes: tuple[str, ...]
    git_commit: str | None
    package_version: str | None
    code_sha256: str | None
    environment_sha256: str | None
    reason: str | None
    opened_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestors:
    """The chain that a thing rests on, the nearest attempt first. missing: what the ledger does not
    know, where the chain ends early; is_cut: there are more than LINKS_MAX."""

    chain: tuple[Ancestor, ...]
    missing: str | None = None
    is_cut: bool = False


def descendants(
    ledger: Ledger, source: Exact, *, as_of: datetime | None = None, named_max: int = NAMED_MAX
) -> Descendants:
    """Return what came of `source`; named_max: of each kind by name. Raises LedgerError."""
    until = as_of or ALWAYS
    limits = {"named_max": named_max, "runs_max": RUNS_MAX}
    was = as_it_was(source, until) or source  # of what was not there yet nothing came by then
    parameters = {**_parameters(was), "as_of": format_time(until), **limits}
    rows = ledger.query(DESCENDANTS.read_text(encoding="utf-8"), parameters)
    runs = next(row["n"] for row in rows if row["what"] == "run")
    return Descendants(
        run_count=runs,
        attempts=_group(rows, "attempt", lambda row: _attempt(ledger, row, until)),
        checkpoints=_group(rows, "checkpoint", _checkpoint),
        evals=_group(rows, "eval", _eval),
        promotions=_group(rows, "promotion", _promotion),
        idle=_group(rows, "clean attempt", _clean, status="idle"),
        apart=_group(rows, "clean attempt", _clean, status="apart"),
        spared=_group(rows, "clean checkpoint", _checkpoint),
    )


def versions_of(ledger: Ledger, source: Exact, *, as_of: datetime | None = None) -> frozenset[str]:
    """Return the data versions by which Dagster knows what came of `source`: a snapshot's own id, and
    the manifests' sha256 of the promoted checkpoints, the newest PROMOTED_MAX. Raises LedgerError."""
    until = as_of or ALWAYS
    limits = {"named_max": PROMOTED_MAX, "runs_max": 0}
    parameters = {**_parameters(source), "as_of": format_time(until), **limits}
    rows = ledger.query(DESCENDANTS.read_text(encoding="utf-8"), parameters)
    promoted = {
        (row["run_id"], row["number"])
        for row in rows
        if row["what"] == "promotion" and row["status"].startswith("named")
    }
    manifests = {
        row["manifest_sha256"]
        for run_id in {run_id for run_id, _ in promoted}
        for row in ledger.query(_MANIFESTS, {"run_id": run_id})
        if (run_id, row["seq"]) in promoted
    }
    snapshot = source.snapshot if source.kind is ThingKind.SNAPSHOT else None
    return frozenset(manifests if snapshot is None else {*manifests, snapshot.snapshot_id})


def ancestors(ledger: Ledger, thing: Exact, *, as_of: datetime | None = None) -> Ancestors:
    """Return the attempts that `thing` rests on; none of a snapshot, a node or code, which rest on
    nothing here. Of a run: of its newest attempt. Raises LedgerError."""
    state = thing.state
    if state is None:
        return Ancestors(chain=())
    until = as_of or ALWAYS
    was = as_it_was(thing, until)
    ref = was.checkpoint if was is not None else None
    opened = [a.attempt_id for a in state.attempts if a.opened_at <= until]
    number = ref.attempt_id if ref else thing.attempt_id or (opened[-1] if opened else None)
    if was is None or number not in opened:
        return Ancestors(chain=(), missing=f"{thing.called}, which was not there yet")
    rows = ledger.query(
        ANCESTORS.read_text(encoding="utf-8"),
        {
            "run_id": ref.run_id if ref else state.run_id,
            "attempt_id": number,
            "step": ref.step if ref else None,
            "manifest_sha256": ref.manifest_sha256 if ref else None,
            "as_of": format_time(until),
            "as_of_us": micros(until),
            "links_max": LINKS_MAX,
        },
    )
    known = [row for row in rows if row["opened_at"] is not None]
    lost = next((row for row in rows if row["opened_at"] is None), None)
    missing = None if lost is None else attempt_key(lost["run_id"], lost["attempt_id"])
    return Ancestors(
        chain=tuple(_ancestor(row, until) for row in known[:LINKS_MAX]),
        missing=missing,
        is_cut=len(known) > LINKS_MAX,
    )


def _parameters(source: Exact) -> dict[str, Json]:
    """Return what the statement is asked; a parameter that does not concern the kind is null."""
    ref, snapshot = source.checkpoint, source.snapshot
    is_snapshot = source.kind is ThingKind.SNAPSHOT and snapshot is not None
    is_checkpoint = source.kind is ThingKind.CHECKPOINT and ref is not None
    return {
        "kind": source.kind.value,
        "dataset": snapshot.dataset if is_snapshot and snapshot else None,
        "snapshot_id": snapshot.snapshot_id if is_snapshot and snapshot else None,
        "node": source.name if source.kind is ThingKind.NODE else None,
        "code": source.name if source.kind is ThingKind.CODE else None,
        "run_id": source.state.run_id if source.state is not None else None,
        "attempt_id": source.attempt_id,
        "manifest_sha256": ref.manifest_sha256 if is_checkpoint and ref else None,
        "eval_id": source.eval_id,
        "number": source.eval_number,
    }


def _group(
    rows: Sequence[Row], what: str, name: Callable[[Row], Named], *, status: str = ""
) -> Group:
    """Return the count and the named rows of one kind; status: only those of that one."""
    of_kind = [row for row in rows if row["what"] == what]
    named = [row for row in of_kind if row["status"].startswith("named")]
    counts = {row["status"]: int(row["n"]) for row in of_kind if row not in named}
    if status:
        named = [row for row in named if row["status"] == f"named {status}"]
        counts = {key: n for key, n in counts.items() if key == status}
    plain = {key: n for key, n in counts.items() if key not in ("all", status)}
    return Group(
        count=sum(counts.values()),
        counts=plain or None,
        newest=tuple(name(row) for row in named),
    )


def _attempt(ledger: Ledger, row: Row, until: datetime) -> Named:
    run_id, attempt_id = row["run_id"], row["attempt_id"]
    used = consumed_by(ledger, run_id, attempt_id, as_of=until)
    return Named(
        thing=f"attempt:{attempt_key(run_id, attempt_id)}",
        at=format_time(row["opened_at"]),
        detail=used.words if used is not None else "no sample of its own",
    )


def _clean(row: Row) -> Named:
    thing = f"attempt:{attempt_key(row['run_id'], row['attempt_id'])}"
    return Named(thing=thing, at=format_time(row["opened_at"]))


def _checkpoint(row: Row) -> Named:
    return Named(
        thing=checkpoint_name(row["run_id"], row["attempt_id"], row["step"]),
        at=format_time(row["opened_at"]),
        status=row["name"] or "",
    )


def _eval(row: Row) -> Named:
    return Named(
        thing=f"eval:{row['run_id']}/{row['name']}",
        at=format_time(row["opened_at"]),
        detail=f"attempt {row['number']} at it",
    )


def _promotion(row: Row) -> Named:
    return Named(
        thing=f"promotion:{row['run_id']}/{row['name']}",
        at=format_time(row["opened_at"]),
        status=row["status"].removeprefix("named "),
        detail=f"step {row['step']} of attempt {row['attempt_id']}",
    )


def _ancestor(row: Row, until: datetime) -> Ancestor:
    step = row["up_to_step"]
    if step is None:
        used = newest_consumed(row, until)
    elif step > row["resumed_step"]:
        used = consumed_between(row, row["cursor_from"], row["saved_cursor"])
    else:
        used = None
    was_placed = row["placed_at"] is not None and row["placed_at"] <= until
    is_closed = row["closed_at"] is not None and row["closed_at"] <= until
    return Ancestor(
        attempt=f"attempt:{attempt_key(row['run_id'], row['attempt_id'])}",
        up_to_step=step,
        from_step=row["resumed_step"],
        did_work=used is not None,
        consumed=used,
        snapshot=None
        if row["snapshot_id"] is None
        else f"snapshot:{row['dataset']}@{row['snapshot_id'][:12]}",
        nodes=tuple(parse_json(row["nodes_json"])) if was_placed else (),
        git_commit=row["git_commit"],
        package_version=row["package_version"],
        code_sha256=row["code_sha256"],
        environment_sha256=row["environment_sha256"] if was_placed else None,
        reason=row["reason"] if is_closed else None,
        opened_at=format_time(row["opened_at"]),
    )


def consumed_by(
    ledger: Ledger, run_id: str, attempt_id: int, *, as_of: datetime | None = None
) -> Consumed | None:
    """Return which samples an attempt used, as of a time; None where it used none."""
    until = as_of or ALWAYS
    rows = ledger.query(
        "select a.config_json, r.roles_json, a.cursor_from, a.cursor_to, a.closed_at, a.last_step, "
        "coalesce(a.resumed_from_step, 0) as resumed_step, max(c.cursor) as newest_cursor, "
        "max(c.step) as newest_step from training_attempts a "
        "join training_runs r on r.run_id = a.run_id left join checkpoints c "
        "on c.run_id = a.run_id and c.attempt_id = a.attempt_id and c.committed_at <= :as_of "
        "where a.run_id = :run_id and a.attempt_id = :attempt_id group by a.config_json, "
        "r.roles_json, a.cursor_from, a.cursor_to, a.closed_at, a.last_step, a.resumed_from_step",
        {"run_id": run_id, "attempt_id": attempt_id, "as_of": format_time(until)},
    )
    return newest_consumed(rows[0], until) if rows else None


def newest_consumed(row: Row, until: datetime) -> Consumed | None:
    """Return what an attempt used by then: by its end, or by its newest commit while it was open."""
    cursors, is_at_least = [row["newest_cursor"]], True
    worked = row["newest_step"] is not None and row["newest_step"] > row["resumed_step"]
    if row["closed_at"] is not None and row["closed_at"] <= until:
        cursors.append(row["cursor_to"])
        is_at_least = row["cursor_to"] is None and row["last_step"] != row["newest_step"]
        has_moved = (row["cursor_to"] or 0) > (row["cursor_from"] or 0)
        worked = worked or row["last_step"] is not None or has_moved
    known = [cursor for cursor in cursors if cursor is not None]
    if not worked:
        return None
    used = consumed_between(row, row["cursor_from"], max(known, default=None))
    return replace(used, is_at_least=is_at_least)


def consumed_between(row: Row, first: int | None, end: int | None) -> Consumed:
    """Return the samples between two cursors, without what the config of `row` skips."""
    config, roles = parse_json(row["config_json"]), parse_json(row["roles_json"])
    skipped = skipped_samples(config, roles, first, end)
    return Consumed(cursor_from=first, cursor_to=end, skipped=skipped)
