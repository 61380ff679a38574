"""What a generated fleet did, as numbers: its runs, attempts, commits, ends and branches. Pure.

Run `index` is a function of the fleet and of itself, so any number of processes may make runs at once,
and the same fleet is the same to the byte. Ten runs in a row are a block of one family: 200 attempts
and 1000 commits, so that the totals are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

from benchmarks.history_ends import draw_end
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef, object_prefix

ATTEMPTS_OF_RUNS = (1, 2, 3, 5, 8, 12, 20, 29, 50, 70)  # of a block: most runs are short
RUNS_OF_BLOCK = len(ATTEMPTS_OF_RUNS)
ATTEMPTS_OF_BLOCK = sum(ATTEMPTS_OF_RUNS)
RESTORED_S = 40.0  # after it was placed
COMMITS_OF_ATTEMPTS = (5, 0, 8, 4, 6, 2, 5, 9, 5, 6)  # repeated; on average 5
EVERY_STEPS = 100  # between two commits
SPAN = timedelta(days=365)  # of the whole history, however many attempts it has
OPEN_MAX = 200  # attempts that are open at its end
WIDE_BLOCKS_MAX = 81  # that train on the wide snapshot: 200 attempts and 1000 checkpoints each
SNAPSHOT_COUNT = 26  # of a dataset: one in two weeks
WIDE_SNAPSHOT = SNAPSHOT_COUNT  # the one that many train on, beside those that came in turn
BRANCH_OF_BLOCK = 9  # the last run of a block branches from the one before it

FAMILIES = ("gpt", "reasoning", "gpt", "tabular", "vision")  # by block, repeated
DATASETS = {
    "gpt": "aws-docs",
    "reasoning": "math-traces",
    "tabular": "flights",
    "vision": "street-views",
}
STAGES = ("smoke", "canary", "full")
POOLS = ("h100-east", "h100-west", "a100-north")
NODES_OF_POOL = 300
RANKS = (1, 2, 2, 4, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """How large the history is and when it ends. attempts: a positive multiple of 200."""

    attempts: int
    end_at: datetime
    seed: int = 7

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.attempts % ATTEMPTS_OF_BLOCK:
            raise ValueError(
                f"A history has a positive multiple of {ATTEMPTS_OF_BLOCK} attempts, not "
                f"{self.attempts}."
            )

    @property
    def block_count(self) -> int:
        """How many blocks of ten runs there are."""
        return self.attempts // ATTEMPTS_OF_BLOCK

    @property
    def run_count(self) -> int:
        """How many runs there are; a run has 20 attempts on average."""
        return self.block_count * RUNS_OF_BLOCK

    @property
    def open_count(self) -> int:
        """How many runs, the newest ones, have an open attempt."""
        return min(OPEN_MAX, self.run_count // 5)

    @property
    def begin_at(self) -> datetime:
        """When the first run ends, at the latest."""
        return self.end_at - SPAN

    def run_id(self, index: int) -> str:
        """Return the id of run `index`: in the order of time."""
        return f"{FAMILIES[index // RUNS_OF_BLOCK % len(FAMILIES)]}-{index:06d}"

    def is_wide(self, block: int) -> bool:
        """Whether the block trains on the wide snapshot: the gpt blocks from the second fifth on."""
        if block % len(FAMILIES) not in (0, 2):
            return False
        first = self.block_count // 5 // len(FAMILIES) * len(FAMILIES)
        rank = (block - first) // len(FAMILIES) * 2 + (block - first) % len(FAMILIES) // 2
        return block >= first and rank < min(WIDE_BLOCKS_MAX, max(1, self.block_count // 5))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlan:
    """One attempt. resume: the checkpoint it begins from, by (attempt_id, step), None: none of its own
    run; steps: of its commits; when, end: how it ends, None while it is open; rolls_back: its newest
    commit is left behind. opened_s …: seconds since the run was declared."""

    attempt_id: int
    resume: tuple[int, int] | None
    steps: tuple[int, ...]
    last_step: int
    when: str
    end: str | None
    rolls_back: bool
    micro_batch: int
    node: int
    opened_s: float
    placed_s: float
    ended_s: float

    @property
    def between_commits_s(self) -> float:
        """Seconds from its restore to a commit, from each to the next, from the last to its end."""
        return (self.ended_s - self.placed_s - RESTORED_S) / (len(self.steps) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One run. branched_from: a checkpoint of run index - 1; branch: the run that branches from it."""

    index: int
    run_id: str
    family: str
    stage: str
    pool: str
    ranks: int
    snapshot: int
    declared_at: datetime
    branched_from: CheckpointRef | None
    branch: str | None
    attempts: tuple[AttemptPlan, ...]


def plan_run(fleet: Fleet, index: int) -> RunPlan:
    """Return what run `index` did."""
    rng = Random(f"{fleet.seed} {index}")
    block, place = divmod(index, RUNS_OF_BLOCK)
    source = _branch_source(fleet, index - 1) if place == BRANCH_OF_BLOCK else None
    is_open = index >= fleet.run_count - fleet.open_count
    attempts = _plan_attempts(rng, index, is_open=is_open, first_step=source.step if source else 0)
    share = 1.0 if is_open else (index + 1) / fleet.run_count
    wide = fleet.is_wide(block) and source is None  # a branch descends from it by its source alone
    return RunPlan(
        index=index,
        run_id=fleet.run_id(index),
        family=FAMILIES[block % len(FAMILIES)],
        stage=STAGES[min(place // 3, 2)],
        pool=POOLS[rng.randrange(len(POOLS))],
        ranks=RANKS[rng.randrange(len(RANKS))],
        snapshot=WIDE_SNAPSHOT if wide else min(int(share * SNAPSHOT_COUNT), SNAPSHOT_COUNT - 1),
        declared_at=fleet.begin_at + share * SPAN - timedelta(seconds=attempts[-1].ended_s),
        branched_from=source,
        branch=fleet.run_id(index + 1) if place == BRANCH_OF_BLOCK - 1 else None,
        attempts=attempts,
    )


def commits_of(index: int, attempt_id: int) -> int:
    """Return how many checkpoints an attempt commits."""
    block, place = divmod(index, RUNS_OF_BLOCK)
    before = block * ATTEMPTS_OF_BLOCK + sum(ATTEMPTS_OF_RUNS[:place])
    return COMMITS_OF_ATTEMPTS[(before + attempt_id) % len(COMMITS_OF_ATTEMPTS)]


def launch_id(index: int, attempt_id: int) -> str:
    """Return the id of the one launch of an attempt."""
    return f"launch-{index:06d}-{attempt_id:03d}"


def checkpoint_ref(run_id: str, index: int, attempt_id: int, step: int) -> CheckpointRef:
    """Return the reference of the checkpoint that an attempt committed at `step`."""
    prefix = object_prefix(AttemptRef(run_id, attempt_id), launch_id(index, attempt_id), step)
    return CheckpointRef(run_id, attempt_id, step, prefix, sha256_hex(prefix.encode()))


def _branch_source(fleet: Fleet, index: int) -> CheckpointRef:
    """Return the first checkpoint that run `index` commits; a rollback never takes it away."""
    place = index % RUNS_OF_BLOCK
    first = next(n for n in range(1, ATTEMPTS_OF_RUNS[place] + 1) if commits_of(index, n))
    return checkpoint_ref(fleet.run_id(index), index, first, EVERY_STEPS)


def _plan_attempts(
    rng: Random, index: int, *, is_open: bool, first_step: int
) -> tuple[AttemptPlan, ...]:
    count = ATTEMPTS_OF_RUNS[index % RUNS_OF_BLOCK]
    hours = rng.uniform(2.0, 20.0)  # of the whole run
    attempts: list[AttemptPlan] = []
    standing: list[tuple[int, int]] = []  # checkpoints that may be resumed from
    micro_batch, at_s = 16, rng.uniform(1.0, 5.0)
    for number in range(1, count + 1):
        resume = standing[-1] if standing else None
        begin = resume[1] if resume else first_step
        steps = tuple(begin + EVERY_STEPS * n for n in range(1, commits_of(index, number) + 1))
        when = "last" if number == count and steps else "midway" if steps else "early"
        end = None if is_open and number == count else draw_end(rng, when)
        standing += [(number, step) for step in steps]
        rolls_back = end == "nan_loss" and len(steps) > 1
        placed_s = at_s + rng.uniform(20.0, 900.0)
        ended_s = placed_s + rng.uniform(0.6, 1.4) * 3600 * hours / count
        attempts.append(
            AttemptPlan(
                attempt_id=number,
                resume=resume,
                steps=steps,
                last_step=(steps[-1] if steps else begin) + _steps_after(rng, end),
                when=when,
                end=end,
                rolls_back=rolls_back,
                micro_batch=micro_batch,
                node=rng.randrange(NODES_OF_POOL),
                opened_s=at_s,
                placed_s=placed_s,
                ended_s=ended_s,
            )
        )
        if rolls_back:
            standing.pop()
        if end == "gpu_oom":
            micro_batch = max(1, micro_batch // 2)
        at_s = ended_s + rng.uniform(5.0, 600.0)
    return tuple(attempts)


def _steps_after(rng: Random, end: str | None) -> int:
    """Return how many steps were run beyond the last commit: none where the end was a save."""
    drawn = rng.randrange(EVERY_STEPS)
    return 0 if end in ("completed", "preempted", "node_drained", "user_cancelled") else drawn
