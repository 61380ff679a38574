"""Where everything that an explanation names can be looked up: commands, and pages of Dagster's UI."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from tracks_dagster.holds.lineage import attempt_thing
from tracks_dagster.reasons.endings import Ending, ending_of
from tracks_dagster.review.effects.explain.explanation import Reference, UiLink
from tracks_dagster.track.names import ATTEMPT_PARTITIONS, NO_DATASET, attempt_key
from tracks_dagster.track.placement import nodes_of
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.track import code_diff_key

NODES_MAX = 4  # of a gang, that are looked up by name


def run_address(dagster_run_id: str, ui_url: str = "") -> str:
    """Return the page of a Dagster run; ui_url: of the web server, empty for the path alone."""
    return f"{ui_url.rstrip('/')}/runs/{quote(dagster_run_id)}"


def attempt_address(run_id: str, attempt_id: int, ui_url: str = "") -> str:
    """Return the page of the attempt's partition: a failed one has its receipt among its events."""
    partition = quote(attempt_key(run_id, attempt_id), safe="")
    path = f"/assets/{ATTEMPT_PARTITIONS}?view=events&partition={partition}"
    return f"{ui_url.rstrip('/')}{path}"


def explain_links(state: RunState, attempt: AttemptState, ui_url: str) -> Iterator[UiLink]:
    """Yield the pages that show this attempt: its partition, and each Dagster run that claimed it."""
    address = attempt_address(state.run_id, attempt.attempt_id, ui_url)
    yield UiLink(what="the attempt's asset partition", address=address)
    for claim in attempt.claims:
        id_ = claim.body.dagster_run_id
        yield UiLink(what=f"Dagster run {id_}", address=run_address(id_, ui_url))


def references(state: RunState, attempt: AttemptState) -> Iterator[Reference]:
    """Yield the command that resolves each kind of id that the explanation of `attempt` names."""
    run_id, key = state.run_id, attempt_key(state.run_id, attempt.attempt_id)
    yield Reference(what="a record by its number", command=f"tracks explain {run_id} --records")
    yield Reference(what="a checkpoint", command=f"tracks checkpoints list {run_id}")
    source = attempt.resumed_from
    if source is not None and source.run_id != run_id:
        what = f"a checkpoint of {source.run_id}"
        yield Reference(what=what, command=f"tracks checkpoints list {source.run_id}")
    dataset = attempt.opened.snapshot.dataset
    if dataset != NO_DATASET:
        yield Reference(what="the snapshot", command=f"tracks snapshots list {dataset}")
    thing = attempt_thing(run_id, attempt.attempt_id)
    yield Reference(what="what it rests on, what came of it", command=f"tracks lineage {thing}")
    for node in nodes_of(attempt.placed)[:NODES_MAX] if attempt.placed is not None else ():
        yield Reference(what=f"what else ran on {node}", command=f"tracks blast node:{node}")
    if attempt.ended is not None:
        yield Reference(what="the evidence, whole", command=f"tracks explain {key} --evidence")
    yield from _same_failures(state, attempt)
    yield Reference(what="a reason, and how often it is retried", command="tracks policy")
    commit = state.declared.code.git_commit
    if commit is not None:
        yield Reference(what="the code, in its checkout", command=f"git show {commit}")
    diff = state.declared.code.diff_sha256
    if diff is not None:
        what = (
            f"its local changes, store/{code_diff_key(run_id, diff)} in the archive, for git apply"
        )
        yield Reference(what=what, command=f"tracks export {run_id}")


def _same_failures(state: RunState, attempt: AttemptState) -> Iterator[Reference]:
    """Yield where else it failed just so, or where the attempt before did, whose fingerprint the
    decision to open this one names."""
    before = state.attempt(attempt.attempt_id - 1)
    for each, what in ((attempt, "the same failure"), (before, "the failure before it")):
        if each is None or each.reason is None or ending_of(each.reason) is Ending.AS_MEANT:
            continue
        if not each.fingerprint:
            continue
        query = (
            "select fingerprint, run_id, attempt_id from training_attempts where fingerprint = "
            f"'{each.fingerprint}'"
        )
        yield Reference(what=f"{what}, elsewhere", command=f'tracks sql "{query}"')
