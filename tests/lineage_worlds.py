"""Random worlds for tests of lineage: several runs under one clock, with branches, rollbacks,
fallbacks, quarantines, evals, promotions, retries with other code and verdicts that were corrected
later, on several snapshots, nodes, commits, environments and stored code.

The same `Random` seed gives the same world. A test that fails must say its seed.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random

from tests.bodies import BEGIN, HELDOUT
from tests.histories import DatasetHistory, Grown, History
from tracks_dagster.track.bodies import CodeVersion, RankPlace, SnapshotRef
from tracks_dagster.track.names import TRAINER_FAMILY
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Kind, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import code_key

SNAPSHOTS = [
    SnapshotRef(dataset="birds", snapshot_id=sha256_hex(f"birds {n}".encode())) for n in range(3)
]
NODES = ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]
COMMITS = [sha256_hex(f"commit {n}".encode())[:40] for n in range(3)]
VERSIONS = ["0.1.0", "0.2.0"]
ENVIRONMENTS = [sha256_hex(f"environment {n}".encode()) for n in range(3)]
SOURCES = [b"one", b"two"]  # of stored code
ALIASES = ["best", "candidate"]
READ_AS = ["host_oom", "hang"]
CONFIG = {"steps": 400, "seed": 7, "global_batch": 24}


class World:
    """Runs that grow under one clock. `times` holds the time of every record."""

    def __init__(self, rng: Random, *, records: int = 200) -> None:
        self.rng = rng
        self.codes = Random(7)  # of its own: what retries bring does not change how a world grows
        self.now = BEGIN
        self.runs: list[History] = []
        self.dataset = DatasetHistory("birds").declare()
        for snapshot in SNAPSHOTS:
            self.dataset.commit(snapshot.snapshot_id)
        for _ in range(records):
            self._grow()

    @property
    def states(self) -> dict[str, RunState]:
        """The runs as they stand."""
        return {run.run_id: run.state for run in self.runs}

    @property
    def times(self) -> list[datetime]:
        """When anything was recorded."""
        return sorted({record.at for run in self.runs for record in run.records})

    @property
    def tracks(self) -> list[Grown]:
        """Every track."""
        return [self.dataset, *self.runs]

    def write_to(self, store: ObjectStore) -> None:
        """Store every record."""
        for track in self.tracks:
            track.write_to(store)

    def _grow(self) -> None:
        rng = self.rng
        self.now += timedelta(seconds=rng.randrange(1, 50))
        if not self.runs or (len(self.runs) < 7 and rng.random() < 0.06):
            self._declare()
            return
        run = rng.choice(self.runs)
        run.at = self.now
        state = run.state
        if state.open_attempt is not None and rng.random() < 0.6:
            self._work(run)
        elif state.attempts and state.attempts[-1].ended is not None and rng.random() < 0.15:
            run.reclassify(len(state.attempts), rng.choice(READ_AS))
        elif state.checkpoints and rng.random() < 0.7:
            self._use(run)
        elif state.open_attempt is None:
            self._open(run)

    def _declare(self) -> None:
        rng = self.rng
        committed = [c.ref for run in self.runs for c in run.state.checkpoints]
        run = History(f"r-{len(self.runs)}", begin=self.now)
        run.declare(
            snapshot=rng.choice(SNAPSHOTS),
            config=CONFIG,
            code=_code(rng),
            trainer=self.codes.choice([TRAINER_FAMILY, self._stored(run)]),
            branched_from=rng.choice(committed) if committed and rng.random() < 0.6 else None,
        )
        self.runs.append(run)

    def _open(self, run: History) -> None:
        rng, state = self.rng, run.state
        there: list[CheckpointRef | None] = [*state.resumable, None]
        resume = rng.choice(there) if rng.random() < 0.4 else state.resumes_from
        if resume is None:
            resume = state.declared.branched_from
        snapshot = state.attempts[-1].opened.snapshot if state.attempts else state.declared.snapshot
        last = state.attempts[-1].opened if state.attempts else None
        own = {} if last is None else {"code": last.code, "trainer": last.trainer}
        if state.attempts and self.codes.random() < 0.15:
            own = {"code": _code(self.codes), "trainer": self._stored(run)}
        run.open(
            resume=resume,
            snapshot=rng.choice(SNAPSHOTS) if rng.random() < 0.2 else snapshot,
            **own,
        )

    def _stored(self, run: History) -> str:
        return code_key(run.run_id, sha256_hex(self.codes.choice(SOURCES)))

    def _work(self, run: History) -> None:
        rng = self.rng
        attempt = run.state.attempts[-1]
        own = [c.ref.step for c in run.state.checkpoints if c.ref.attempt_id == attempt.attempt_id]
        done = max([attempt.resumed_step, *own])
        if rng.random() < 0.2:
            ran = rng.choice([None, done, done + 1, done + 2])
            is_reported = ran is not None and attempt.restored is not None and rng.random() < 0.7
            run.end(
                rng.choice(["preempted", "completed", "gpu_oom"]),
                last_step=ran if rng.random() < 0.5 else None,
                cursor_from=attempt.restored.cursor if is_reported and attempt.restored else None,
                cursor_to=24 * ran if is_reported and ran is not None else None,
            )
        elif attempt.placed is None:
            nodes = rng.sample(NODES, rng.randrange(1, 3))
            ranks = tuple(_rank(rank, nodes[rank % len(nodes)]) for rank in range(2))
            run.place(ranks=ranks, environment_sha256=rng.choice(ENVIRONMENTS))
        elif attempt.restored is None:
            earlier = [c for c in run.state.resumable if c != attempt.opened.resume]
            fallback = rng.choice(earlier) if earlier and rng.random() < 0.5 else None
            run.restore(fallback)
        else:
            # Now and then a save before the first step, which holds what was restored.
            step = done if not own and rng.random() < 0.4 else done + rng.randrange(1, 4)
            run.commit(step)

    def _use(self, run: History) -> None:
        rng, state = self.rng, run.state
        match rng.randrange(4):
            case 0:
                kinds = (
                    Kind.CHECKPOINT_QUARANTINED,
                    Kind.CHECKPOINT_SUPERSEDED,
                    Kind.CHECKPOINT_DELETED,
                )
                chosen = rng.choice(state.checkpoints).ref
                is_passed_over = rng.random() < 0.5
                run.decide_checkpoint(rng.choice(kinds), chosen, is_passed_over=is_passed_over)
            case 1:
                self._open_eval(run)
            case 2:
                running = [e for e in state.evals if e.ended is None]
                if running:
                    run.end_eval(rng.choice(running).opened)
            case _:
                if state.evals:
                    opened = rng.choice(state.evals).opened
                    run.promote(opened, promoted=rng.random() < 0.8, alias=rng.choice(ALIASES))

    def _open_eval(self, run: History) -> None:
        ref = self.rng.choice(run.state.checkpoints).ref
        on = self.rng.choice([HELDOUT, *SNAPSHOTS])
        run.open_eval(ref, snapshot=on)


def _code(rng: Random) -> CodeVersion:
    return CodeVersion(
        git_commit=rng.choice([*COMMITS, None]),
        branch=None,
        dirty=False,
        package_version=rng.choice(VERSIONS),
    )


def _rank(rank: int, node: str) -> RankPlace:
    return RankPlace(
        rank=rank,
        node=node,
        pid=100 + rank,
        pid_started=1.5,
        boot_id="boot",
        device="cpu",
        accelerator="cpu",
    )
