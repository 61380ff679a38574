"""Faults planted in the statements that walk lineage, each of which the comparison has to find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tracks_dagster.holds.effects.descent import ANCESTORS, DESCENDANTS

_AS_OF_EDGE = "r.since_at <= :as_of and (r.until_at is null or r.until_at > :as_of)"
_IN_WALK = "\n        -- Always"  # what follows the edge of the walk, and not that of the seeds


@dataclass(frozen=True)
class Fault:
    """In the text of `statement`, what stands there and what is put in its place."""

    statement: Path
    found: str
    put: str


def _down(found: str, put: str) -> Fault:
    return Fault(DESCENDANTS, found, put)


def _up(found: str, put: str) -> Fault:
    return Fault(ANCESTORS, found, put)


def planted(fault: Fault, folder: Path) -> Path:
    """Return a copy of the statement with the fault, which has to have one place."""
    text = fault.statement.read_text(encoding="utf-8")
    assert text.count(fault.found) == 1, (
        f"{fault.found!r} stands there {text.count(fault.found)} times"
    )
    path = folder / fault.statement.name
    path.write_text(text.replace(fault.found, fault.put), encoding="utf-8")
    return path


DESCENDANTS_FAULTS: Mapping[str, Fault] = {
    "an attempt that was opened on a snapshot counts as one that used it": _down(
        "then a.last_step is not null or coalesce(a.cursor_to, 0) > coalesce(a.cursor_from, 0)",
        "then 1 = 1",
    ),
    "cursors are not looked at": _down(
        " or coalesce(a.cursor_to, 0) > coalesce(a.cursor_from, 0)", ""
    ),
    "an open attempt has used nothing": _down("else exists (", "else 1 = 0 and exists ("),
    "an open attempt is judged by its later end": _down(
        "when a.closed_at <= :as_of", "when a.closed_at is not null"
    ),
    "branches are dropped": _down(
        "r.source_step > w.after_step",
        "r.source_step > w.after_step and r.source_run_id = r.run_id",
    ),
    "what was restored passes on the work of who restored it": _down(
        "r.source_step > w.after_step", "r.source_step >= w.after_step"
    ),
    "what was saved before the first step counts": _down(
        "where c.step > t.after_step and", "where c.step >= t.after_step and"
    ),
    "resumes of later count": _down(f"where {_AS_OF_EDGE}{_IN_WALK}", f"where 1 = 1{_IN_WALK}"),
    "what was only asked for counts after a fallback": _down(
        f"where {_AS_OF_EDGE}{_IN_WALK}", f"where r.since_at <= :as_of{_IN_WALK}"
    ),
    "code is that of the declaration": _down(
        "a.git_commit = :code",
        "a.run_id in (select run_id from training_runs where git_commit = :code)",
    ),
    "stored code has no name": _down("a.code_sha256 = :code", "1 = 0"),
    "placements of later count": _down(" and n.placed_at <= :as_of", ""),
    "checkpoints of later count": _down(
        "where c.step > t.after_step and c.committed_at <= :as_of", "where c.step > t.after_step"
    ),
    "a checkpoint reaches anyone who resumed from its attempt": _down(
        " and r.source_manifest_sha256 = :manifest_sha256", ""
    ),
    "what was quarantined is not a descendant": _down(
        "where c.step > t.after_step and",
        "where c.quarantined_at is null and c.step > t.after_step and",
    ),
    "evals of superseded checkpoints are dropped": _down(
        "select run_id, manifest_sha256 from saved\n",
        "select run_id, manifest_sha256 from saved where status <> 'superseded'\n",
    ),
    "evals on the snapshot itself are dropped": _down(
        "where :kind = 'snapshot' and e.dataset", "where 1 = 0 and e.dataset"
    ),
    "refused promotions count": _down(
        "p.manifest_sha256 = b.manifest_sha256\n    where p.promoted and",
        "p.manifest_sha256 = b.manifest_sha256\n    where",
    ),
    "an alias that was given away later is not in use": _down(
        "and q.promoted and q.decided_at <= :as_of", "and q.promoted"
    ),
    "what was hit is called clean": _down(
        "a.run_id = r.run_id and t.run_id is null and", "a.run_id = r.run_id and"
    ),
    "what is idle is called nothing": _down("having max(is_reached) = 0", "having 1 = 0"),
}

ANCESTORS_FAULTS: Mapping[str, Fault] = {
    "resumes of later count": _up(_AS_OF_EDGE, "1 = 1"),
    "what was only asked for counts after a fallback": _up(_AS_OF_EDGE, "r.since_at <= :as_of"),
    "branches are dropped": _up(
        f"where {_AS_OF_EDGE}", f"where r.source_run_id = u.run_id and {_AS_OF_EDGE}"
    ),
    "the work of an attempt does not end at what was taken of it": _up(
        "c.cursor as saved_cursor", "a.cursor_to as saved_cursor"
    ),
    "what an open attempt saved later counts": _up(
        "select max(k.cursor) from checkpoints k\n        where k.run_id = u.run_id and "
        "k.attempt_id = u.attempt_id and k.committed_at <= :as_of",
        "select max(k.cursor) from checkpoints k\n        where k.run_id = u.run_id and "
        "k.attempt_id = u.attempt_id",
    ),
    "what was restored later is claimed of an attempt that had not": _up(
        "coalesce(e.source_step, 0) as", "coalesce(a.resumed_from_step, 0) as"
    ),
    "an end is given as it was read later": _up(" and t.told_us <= :as_of_us", ""),
    "an end is given as it was read first": _up("order by t.seq desc", "order by t.seq"),
    "only the nearest is found": _up("and u.depth < :links_max", "and u.depth < 1"),
}
