"""What descends from a source, found the slow way: for each thing its parents, followed upwards one by
one over the folded tracks. Shares no code with what it judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tests.histories import History
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import AttemptState, CheckpointState, RunState

Node = tuple[str, ...]  # ("attempt", run, "3"), ("checkpoint", manifest), ("node", name) …


@dataclass(frozen=True)
class Answer:
    """Names as `Descendants` gives them."""

    attempts: set[str]
    checkpoints: set[tuple[str, str]]
    evals: list[str]
    promotions: set[tuple[str, str, str]]
    idle: set[str]
    apart: set[str]
    spared: set[str]


@dataclass(frozen=True)
class Link:
    """One attempt that a thing rests on, as `Ancestor` gives it. used: cursors; None for no sample."""

    attempt: str
    up_to_step: int | None
    from_step: int
    used: tuple[int | None, int | None] | None
    snapshot: str
    nodes: tuple[str, ...]
    reason: str | None


def states_at(runs: Sequence[History], until: datetime) -> dict[str, RunState]:
    """Fold of each run what was recorded by then."""
    found = {}
    for run in runs:
        state = run_fold.fold([record for record in run.records if record.at <= until])
        if state is not None:
            found[run.run_id] = state
    return found


class Oracle:
    """The graph of parents of a world as of a time."""

    def __init__(self, runs: Sequence[History], until: datetime) -> None:
        self.states = states_at(runs, until)
        self.parents: dict[Node, set[Node]] = {}
        for state in self.states.values():
            self._add_attempts(state)
            self._add_checkpoints(state)
            self._add_evals(state)

    def above(self, node: Node) -> set[Node]:
        """Everything that a node comes from."""
        found: set[Node] = set()
        waiting = [node]
        while waiting:
            for parent in self.parents.get(waiting.pop(), ()):
                if parent not in found:
                    found.add(parent)
                    waiting.append(parent)
        return found

    def chain(self, run_id: str, attempt_id: int, manifest: str | None) -> list[Link]:
        """What an attempt, or the checkpoint of it that is named, rests on, one by one upwards."""
        links = []
        while True:
            state = self.states[run_id]
            attempt = state.attempts[attempt_id - 1]
            began = attempt.restored.checkpoint if attempt.restored else attempt.opened.resume
            taken = state.checkpoint(manifest) if manifest is not None else None
            on = attempt.opened.snapshot
            links.append(
                Link(
                    attempt=f"attempt:{run_id}/a{attempt_id:02d}",
                    up_to_step=taken.ref.step if taken is not None else None,
                    from_step=began.step if began is not None else 0,
                    used=_cursors(state, attempt_id, taken),
                    snapshot=f"snapshot:{on.dataset}@{on.snapshot_id[:12]}",
                    nodes=tuple(sorted({r.node for r in attempt.placed.ranks}))
                    if attempt.placed is not None
                    else (),
                    reason=_reason(attempt),
                )
            )
            if began is None:
                return links
            run_id, attempt_id, manifest = began.run_id, began.attempt_id, began.manifest_sha256

    def answer(self, source: Node) -> Answer:
        """What comes from the source, and what of the same runs does not."""
        attempts, checkpoints, evals, promotions = set(), set(), [], set()
        all_attempts: dict[str, str] = {}
        all_checkpoints: dict[str, str] = {}
        touched: set[str] = set()
        opened_on_it: set[str] = set()
        for state in self.states.values():
            run_id = state.run_id
            for attempt in state.attempts:
                node = ("attempt", run_id, str(attempt.attempt_id))
                name = f"attempt:{run_id}/a{attempt.attempt_id:02d}"
                all_attempts[name] = run_id
                if source in self.above(node):
                    attempts.add(name)
                if source in self.above(node) or node == source:
                    touched.add(run_id)
                on = attempt.opened.snapshot
                if source == ("snapshot", on.dataset, on.snapshot_id):
                    opened_on_it.add(name)
                    touched.add(run_id)
            for c in state.checkpoints:
                name = f"checkpoint:{run_id}/a{c.ref.attempt_id:02d}@{c.ref.step}"
                all_checkpoints[name] = run_id
                if source in self.above(("checkpoint", c.ref.manifest_sha256)):
                    checkpoints.add((name, c.status))
                if source == ("checkpoint", c.ref.manifest_sha256):
                    del all_checkpoints[name]
            for e in state.evals:
                node = ("eval", run_id, e.opened.eval_id, str(e.opened.number))
                if source in self.above(node):
                    evals.append(f"eval:{run_id}/{e.opened.eval_id} {e.opened.number}")
            for p in state.promotions:
                if p.body.promoted and source in self.above(("promotion", run_id, str(p.seq))):
                    status = (
                        "in use" if self._holds(p.body.alias, run_id, p.seq) else "replaced since"
                    )
                    promotions.add((f"promotion:{run_id}/{p.body.alias}", status, str(p.at)))
        own = {f"attempt:{source[1]}/a{int(source[2]):02d}"} if source[0] == "attempt" else set()
        rest = {n for n, r in all_attempts.items() if r in touched} - attempts - own
        hit = {name for name, _ in checkpoints}
        return Answer(
            attempts=attempts,
            checkpoints=checkpoints,
            evals=sorted(evals),
            promotions=promotions,
            idle=rest & opened_on_it,
            apart=rest - opened_on_it,
            spared={n for n, r in all_checkpoints.items() if r in touched} - hit,
        )

    def _holds(self, alias: str, run_id: str, seq: int) -> bool:
        given = [
            (p.at, s.run_id, p.seq)
            for s in self.states.values()
            for p in s.promotions
            if p.body.promoted and p.body.alias == alias
        ]
        newest = max(each[0] for each in given)
        first_run = min(each[1] for each in given if each[0] == newest)
        last_seq = max(e[2] for e in given if e[0] == newest and e[1] == first_run)
        return (run_id, seq) == (first_run, last_seq)

    def _add_attempts(self, state: RunState) -> None:
        for attempt in state.attempts:
            node = ("attempt", state.run_id, str(attempt.attempt_id))
            parents: set[Node] = set()
            began = attempt.restored.checkpoint if attempt.restored else attempt.opened.resume
            if began is not None:
                parents.add(("checkpoint", began.manifest_sha256))
            if attempt.placed is not None:
                parents |= {("node", rank.node) for rank in attempt.placed.ranks}
                parents |= {("code", name) for name in _code_names(state, attempt)}
            if _used_samples(state, attempt.attempt_id):
                snapshot = attempt.opened.snapshot
                parents.add(("snapshot", snapshot.dataset, snapshot.snapshot_id))
            self.parents[node] = parents

    def _add_checkpoints(self, state: RunState) -> None:
        for checkpoint in state.checkpoints:
            ref = checkpoint.ref
            attempt = state.attempts[ref.attempt_id - 1]
            assert attempt.restored is not None, "worlds restore before they save"
            began = attempt.restored.checkpoint
            parents: set[Node] = set()
            if ref.step != (began.step if began else 0):
                parents.add(("attempt", state.run_id, str(ref.attempt_id)))
            if began is not None:
                parents.add(("checkpoint", began.manifest_sha256))
            self.parents["checkpoint", ref.manifest_sha256] = parents

    def _add_evals(self, state: RunState) -> None:
        for each in state.evals:
            opened = each.opened
            self.parents["eval", state.run_id, opened.eval_id, str(opened.number)] = {
                ("checkpoint", opened.checkpoint.manifest_sha256),
                ("snapshot", opened.snapshot.dataset, opened.snapshot.snapshot_id),
            }
        for promotion in state.promotions:
            body = promotion.body
            self.parents["promotion", state.run_id, str(promotion.seq)] = {
                ("checkpoint", body.checkpoint.manifest_sha256),
                ("eval", state.run_id, body.eval_id, str(body.eval_number)),
            }


def _reason(attempt: AttemptState) -> str | None:
    result = attempt.reclassified or attempt.ended
    return result.reason if result is not None else None


def _cursors(
    state: RunState, attempt_id: int, taken: CheckpointState | None
) -> tuple[int | None, int | None] | None:
    """From which sample to which: of what was taken, else of all that is recorded."""
    attempt = state.attempts[attempt_id - 1]
    began = attempt.restored.checkpoint if attempt.restored else attempt.opened.resume
    first = attempt.restored.cursor if attempt.restored else None
    if taken is not None:
        worked = taken.ref.step != (began.step if began is not None else 0)
        return (first, taken.body.cursor) if worked else None
    if not _used_samples(state, attempt_id):
        return None
    result = [c.body.cursor for c in state.checkpoints if c.ref.attempt_id == attempt_id]
    if attempt.ended is not None and attempt.ended.cursor_to is not None:
        result.append(attempt.ended.cursor_to)
    return first, max(result, default=None)


def _code_names(state: RunState, attempt: AttemptState) -> set[str]:
    """Everything that the code of an attempt may be called."""
    assert attempt.placed is not None
    code = attempt.opened.code or state.declared.code
    trainer = attempt.opened.trainer or state.declared.trainer
    stored = None if trainer == "family" else trainer.rpartition("/")[2].partition(".")[0]
    names = (code.git_commit, code.package_version, attempt.placed.environment_sha256, stored)
    return {name for name in names if name is not None}


def _used_samples(state: RunState, attempt_id: int) -> bool:
    attempt = state.attempts[attempt_id - 1]
    began = attempt.restored.checkpoint if attempt.restored else attempt.opened.resume
    first = began.step if began else 0
    steps = [c.ref.step for c in state.checkpoints if c.ref.attempt_id == attempt_id]
    if attempt.ended is not None and attempt.ended.last_step is not None:
        steps.append(attempt.ended.last_step)
    moved = False
    if attempt.ended is not None and attempt.ended.cursor_to is not None:
        moved = attempt.ended.cursor_to > (attempt.ended.cursor_from or 0)
    return moved or any(step > first for step in steps)


def sources(states: Mapping[str, RunState]) -> list[Node]:
    """Everything that can be asked about."""
    found: set[Node] = set()
    for state in states.values():
        for attempt in state.attempts:
            found.add(("attempt", state.run_id, str(attempt.attempt_id)))
            found.add(
                ("snapshot", attempt.opened.snapshot.dataset, attempt.opened.snapshot.snapshot_id)
            )
            if attempt.placed is not None:
                found |= {("node", rank.node) for rank in attempt.placed.ranks}
                found |= {("code", name) for name in _code_names(state, attempt)}
        found |= {("checkpoint", c.ref.manifest_sha256) for c in state.checkpoints}
    return sorted(found)


def named_by_then(oracle: Oracle) -> dict[Node, CheckpointRef]:
    """The evals and promotions that can be asked about by name, each with the checkpoint that the
    newest one by then is of."""
    found: dict[Node, CheckpointRef] = {}
    for state in oracle.states.values():
        for each in state.evals:
            found["eval", state.run_id, each.opened.eval_id] = each.opened.checkpoint
        for promotion in state.promotions:
            if promotion.body.promoted:
                key = ("promotion", state.run_id, promotion.body.alias)
                found[key] = promotion.body.checkpoint
    return found
