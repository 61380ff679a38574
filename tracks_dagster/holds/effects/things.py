"""Find what a person's `kind:name` names: the one thing, or the nearest names there are.

A name with a run or dataset in it is looked up in that one's track; others (a manifest's sha256, a
commit, a node) in the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tracks_dagster.holds.hold import ThingKind
from tracks_dagster.holds.lineage import (
    COMMIT_CHARACTERS_MIN,
    FORMS,
    PREFIX_CHARACTERS_MIN,
    Thing,
    checkpoint_name,
    checkpoint_thing,
    is_named_with_kind,
    parse_thing,
    possible_things,
)
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.bodies import EvalOpened, PromotionDecided, SnapshotRef
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.names import parse_attempt_key
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import CheckpointState, RunState, known_attempt
from tracks_dagster.track.text.nearest import did_you_mean, instead

KNOWN_MAX = 10_000  # names that the ledger is asked for, to find the nearest
AMBIGUOUS_NAMED_MAX = 5
NODES_NAMED_MAX = 5
CODE_NAMED_MAX = 3  # of the runs declared last


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """One thing that there is.

    text: its unambiguous name, as a quarantine's record has it; called: as people name it.
    state: of the run that it belongs to; the others: what it is or rests on.
    """

    kind: ThingKind
    text: str
    called: str
    state: RunState | None = None
    attempt_id: int | None = None
    checkpoint: CheckpointRef | None = None
    snapshot: SnapshotRef | None = None
    eval_id: str | None = None
    eval_number: int | None = None
    alias: str | None = None

    @property
    def name(self) -> str:
        """`text` without its kind."""
        return self.text.partition(":")[2]


def find_exact(tracks: Tracks, ledger: Ledger | None, thing: Thing) -> Exact:
    """Return what `thing` names.

    ledger: None where there is none; then only runs, their attempts, steps, evals and promotions, and
    snapshots are found. Raises UnknownRun naming the nearest, InvalidInput for what is ambiguous.
    """
    match thing.kind:
        case ThingKind.SNAPSHOT:
            return _snapshot(tracks, thing.name)
        case ThingKind.CHECKPOINT:
            return _checkpoint(tracks, ledger, thing.name)
        case ThingKind.NODE:
            name = f"{thing.kind}:{find_node(ledger, thing.name)}"
            return Exact(kind=thing.kind, text=name, called=name)
        case ThingKind.CODE:
            name = f"{thing.kind}:{find_code(ledger, thing.name)}"
            return Exact(kind=thing.kind, text=name, called=name)
        case ThingKind.ATTEMPT:
            return _attempt(tracks, thing)
        case ThingKind.RUN:
            return _of_run(thing, tracks.run(thing.name))
        case ThingKind.EVAL:
            return _eval(tracks, thing)
        case ThingKind.PROMOTION:
            return _promotion(tracks, thing)


def find_thing(tracks: Tracks, ledger: Ledger | None, text: str) -> Thing:
    """Return the thing that a person names, with its kind or, where only one thing has such a name,
    without: RUN, RUN/aNN, RUN@STEP, DATASET@ID, the first digits of an id.

    Raises InvalidInput for what names nothing or several things, and UnknownRun.
    """
    if is_named_with_kind(text):
        return parse_thing(text)
    found, problems = {}, []
    for thing in possible_things(text):
        try:
            found[find_exact(tracks, ledger, thing).text] = thing
        except InvalidInput as error:
            problems.append(error)
    one_of(text, [str(each) for each in found.values()])
    if not found:
        kinds = ", ".join(f"{kind}:{form}" for kind, (form, _) in FORMS.items())
        raise UnknownRun(f"{problems[0]} Of another kind of thing write the kind too: {kinds}.")
    return next(iter(found.values()))


def as_it_was(thing: Exact, until: datetime) -> Exact | None:
    """Return what `thing` named at that time: of an eval or a promotion the newest one by then.

    None for a checkpoint, an eval or a promotion that was not there yet.
    """
    state, was = thing.state, thing
    if state is None:
        return thing
    if thing.kind is ThingKind.PROMOTION:
        by_then = [p.body for p in state.promotions if p.at <= until and p.body.promoted]
        of_alias = [body for body in by_then if body.alias == thing.alias]
        if not of_alias:
            return None
        was = _as_promotion(thing, of_alias[-1])
    if thing.kind is ThingKind.EVAL:
        opened = [e.opened for e in state.evals if e.opened_at <= until]
        tries = [each for each in opened if each.eval_id == thing.eval_id]
        if not tries:
            return None
        was = _as_eval(thing, tries[-1])
    found = state.checkpoint(was.checkpoint.manifest_sha256) if was.checkpoint else None
    return was if found is None or found.at <= until else None


def _snapshot(tracks: Tracks, name: str) -> Exact:
    dataset, _, prefix = name.rpartition("@")
    known = [
        each.removeprefix("datasets/").rstrip("/") for each in tracks.store.folders("datasets/")
    ]
    if not dataset:
        dataset = _dataset_of(tracks, known, prefix)
    state = tracks.find_dataset(dataset)
    if state is None:
        raise UnknownRun(
            f"There is no dataset {dataset!r}; {did_you_mean(dataset, known)}"
            "`tracks snapshots list` names them."
        )
    found = [s.body.snapshot_id for s in state.snapshots if s.body.snapshot_id.startswith(prefix)]
    if not found:
        newest = [s.body.snapshot_id for s in state.snapshots]
        raise UnknownRun(
            f"There is no snapshot {prefix!r} of dataset {dataset}; "
            f"{did_you_mean(prefix, [each[: len(prefix)] for each in newest])}"
            f"`tracks snapshots list {dataset}` names them."
        )
    one_of(f"snapshot:{name}", found)
    ref = SnapshotRef(dataset=dataset, snapshot_id=found[0])
    called = f"snapshot:{dataset}@{found[0][:12]}"
    return Exact(
        kind=ThingKind.SNAPSHOT,
        text=f"snapshot:{dataset}@{found[0]}",
        called=called,
        snapshot=ref,
    )


def _dataset_of(tracks: Tracks, datasets: Sequence[str], prefix: str) -> str:
    """Return the dataset that has a snapshot whose id begins so."""
    found = {}
    for dataset in datasets:
        state = tracks.find_dataset(dataset)
        for each in () if state is None else state.snapshots:
            if each.body.snapshot_id.startswith(prefix):
                found[f"snapshot:{dataset}@{each.body.snapshot_id[:12]}"] = dataset
    one_of(f"snapshot:{prefix}", list(found))
    if not found:
        raise UnknownRun(
            f"No dataset has a snapshot whose id begins with {prefix!r}; `tracks snapshots list` names "
            "them."
        )
    return next(iter(found.values()))


def _attempt(tracks: Tracks, thing: Thing) -> Exact:
    run_id, attempt_id = parse_attempt_key(thing.name)
    state = tracks.run(run_id)
    known_attempt(state, attempt_id)
    return replace(_of_run(thing, state), attempt_id=attempt_id)


def _checkpoint(tracks: Tracks, ledger: Ledger | None, name: str) -> Exact:
    where, separator, step = name.partition("@")
    if separator:
        run_id, attempt_id = parse_attempt_key(where) if "/" in where else (where, None)
        state = tracks.run(run_id)
        found = [
            c
            for c in state.checkpoints
            if c.ref.step == int(step) and attempt_id in (None, c.ref.attempt_id)
        ]
        if not found:
            raise UnknownRun(_no_step(state, int(step), attempt_id))
        names = [checkpoint_name(run_id, c.ref.attempt_id, c.ref.step) for c in found]
        one_of(f"checkpoint:{name}", names)
        return _of_checkpoint(state, found[0])
    run_id, manifest_sha256 = find_manifest(ledger, name)
    state = tracks.run(run_id)
    committed = state.checkpoint(manifest_sha256)
    if committed is None:
        raise UnknownRun(
            f"{state.run_id} has no checkpoint {name!r}, though the ledger says so: `tracks fsck`."
        )
    return _of_checkpoint(state, committed)


def _eval(tracks: Tracks, thing: Thing) -> Exact:
    run_id, _, eval_id = thing.name.partition("/")
    state = tracks.run(run_id)
    found = [each.opened for each in state.evals if each.opened.eval_id == eval_id]
    if not found:
        known = sorted({each.opened.eval_id for each in state.evals})
        raise UnknownRun(
            f"{run_id} has no eval {eval_id!r}; "
            + instead(
                eval_id, known, f"it has: {', '.join(known[:AMBIGUOUS_NAMED_MAX]) or 'none'}."
            )
        )
    return _as_eval(_of_run(thing, state), found[-1])


def _promotion(tracks: Tracks, thing: Thing) -> Exact:
    run_id, _, alias = thing.name.partition("/")
    state = tracks.run(run_id)
    found = [p.body for p in state.promotions if p.body.promoted and p.body.alias == alias]
    if not found:
        known = sorted({p.body.alias for p in state.promotions if p.body.promoted})
        raise UnknownRun(
            f"Nothing of {run_id} was promoted to {alias!r}; "
            + instead(alias, known, f"promoted were: {', '.join(known) or 'none'}.")
        )
    return _as_promotion(_of_run(thing, state), found[-1])


def _of_run(thing: Thing, state: RunState) -> Exact:
    return Exact(kind=thing.kind, text=str(thing), called=str(thing), state=state)


def _as_eval(thing: Exact, opened: EvalOpened) -> Exact:
    return replace(
        thing,
        checkpoint=opened.checkpoint,
        snapshot=opened.snapshot,
        eval_id=opened.eval_id,
        eval_number=opened.number,
    )


def _as_promotion(thing: Exact, decided: PromotionDecided) -> Exact:
    return replace(
        thing,
        checkpoint=decided.checkpoint,
        snapshot=decided.snapshot,
        eval_id=decided.eval_id,
        eval_number=decided.eval_number,
        alias=decided.alias,
    )


def _of_checkpoint(state: RunState, checkpoint: CheckpointState) -> Exact:
    ref = checkpoint.ref
    return Exact(
        kind=ThingKind.CHECKPOINT,
        text=str(checkpoint_thing(ref)),
        called=checkpoint_name(state.run_id, ref.attempt_id, ref.step),
        state=state,
        attempt_id=ref.attempt_id,
        checkpoint=ref,
    )


def _no_step(state: RunState, step: int, attempt_id: int | None) -> str:
    of = "" if attempt_id is None else f" by attempt {attempt_id}"
    there = sorted(
        {c.ref.step for c in state.checkpoints}, key=lambda each: (abs(each - step), each)
    )
    nearest = ", ".join(str(each) for each in sorted(there[:AMBIGUOUS_NAMED_MAX])) or "none"
    return (
        f"{state.run_id} committed no checkpoint of step {step}{of}; the nearest are: {nearest}. "
        f"`tracks checkpoints list {state.run_id}` shows all."
    )


def find_manifest(ledger: Ledger | None, name: str) -> tuple[str, str]:
    """Return run id and manifest sha256 of the checkpoint whose manifest's begins with `name`.

    Raises UnknownRun when there is none, InvalidInput when there are several, or no ledger.
    """
    if ledger is None:
        raise InvalidInput(
            f"checkpoint:{name} can be found only with a ledger; write checkpoint:RUN@STEP, or build "
            "one with `tracks reindex`."
        )
    rows = ledger.query(
        "select run_id, manifest_sha256 from checkpoints where manifest_sha256 >= :name "
        "and manifest_sha256 < :beyond order by manifest_sha256 limit 2",
        {"name": name, "beyond": _beyond(name)},
    )
    one_of(f"checkpoint:{name}", [row["manifest_sha256"] for row in rows])
    if not rows:
        raise UnknownRun(
            f"No checkpoint has a manifest with the sha256 {name!r}; `tracks checkpoints list RUN` "
            "shows those of a run, and checkpoint:RUN@STEP names one."
        )
    return rows[0]["run_id"], rows[0]["manifest_sha256"]


def find_node(ledger: Ledger | None, name: str) -> str:
    """Return `name` if attempts ran on a node of that name or no ledger can tell; raises UnknownRun."""
    sql = "select node from attempt_nodes where node = :node limit 1"
    if ledger is not None and not ledger.query(sql, {"node": name}):
        known = sorted(_names(ledger, "select distinct node as name from attempt_nodes"))
        ran = ", ".join(known[:NODES_NAMED_MAX]) or "none"
        more = f" and {len(known) - NODES_NAMED_MAX} more" if len(known) > NODES_NAMED_MAX else ""
        raise UnknownRun(
            f"No attempt ever ran on a node {name!r}; "
            f"{instead(name, known, f'they ran on: {ran}{more}.')}"
        )
    return name


def find_code(ledger: Ledger | None, name: str) -> str:
    """Return the whole commit, environment or stored code that begins with `name`, or the version.

    Raises UnknownRun naming the nearest, InvalidInput when it begins several.
    """
    if ledger is None:
        return name
    is_commit, is_sha256 = (
        len(name) >= COMMIT_CHARACTERS_MIN,
        len(name) >= PREFIX_CHARACTERS_MIN,
    )
    rows = ledger.query(
        "select git_commit as name from training_runs where git_commit = :name "
        "or substr(git_commit, 1, :n) = :prefix "
        "union select git_commit from training_attempts "
        "where git_commit >= :commit and git_commit < :beyond_commit "
        "union select package_version from training_runs where package_version = :name "
        "union select package_version from training_attempts where package_version = :name "
        "union select environment_sha256 from training_attempts "
        "where environment_sha256 >= :sha256 and environment_sha256 < :beyond "
        "union select code_sha256 from training_attempts "
        "where code_sha256 >= :sha256 and code_sha256 < :beyond",
        {
            "name": name,
            "n": len(name),
            "prefix": name if is_commit else "",
            "commit": name if is_commit else "",
            "beyond_commit": _beyond(name) if is_commit else "",
            "sha256": name if is_sha256 else "",
            "beyond": _beyond(name) if is_sha256 else "",
        },
    )
    found = [row["name"] for row in rows]
    if name in found:
        return name
    one_of(f"code:{name}", found)
    if found:
        return str(found[0])
    known = _names(
        ledger,
        "select git_commit as name from training_runs union select package_version from training_runs",
    )
    close = did_you_mean(name, sorted({each[: len(name)] for each in known}))
    raise UnknownRun(
        f"No run has code {name!r}; {close}{_newest_code(ledger)}give the first "
        f"{COMMIT_CHARACTERS_MIN} or more digits of a commit, a version, or the first "
        f"{PREFIX_CHARACTERS_MIN} of the sha256 of stored code or of an environment."
    )


def one_of(given: str, found: Sequence[str]) -> None:
    """Raise InvalidInput naming what `given` may mean when that is more than one thing."""
    if len(set(found)) > 1:
        named = ", ".join(sorted(set(found))[:AMBIGUOUS_NAMED_MAX])
        raise InvalidInput(f"{given} names more than one thing; write one of {named}.")


def _newest_code(ledger: Ledger) -> str:
    """Return what the newest runs were declared with, as a clause to go on after."""
    rows = ledger.query(
        "select coalesce(git_commit, package_version) as name, max(declared_at) as newest_at "
        "from training_runs group by coalesce(git_commit, package_version) "
        f"order by newest_at desc, name limit {CODE_NAMED_MAX}"
    )
    named = ", ".join(str(row["name"])[:12] for row in rows)
    return f"the newest runs have {named}; " if named else ""


def _names(ledger: Ledger, sql: str) -> list[str]:
    rows = ledger.query(f"select name from ({sql}) named limit {KNOWN_MAX}")
    return [row["name"] for row in rows if row["name"] is not None]


def _beyond(prefix: str) -> str:
    """Return what every longer text of hex digits that begins with `prefix` comes before."""
    return f"{prefix}g"
