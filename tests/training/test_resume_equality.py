"""Killed at every step, resumed three times in a row: every loss and every stored bit stays equal.

Real ranks die by kill -9, at a random moment of the step, with a save in the background at whatever
point it had got to. Equal means: each step's loss in every attempt that ran it, and the final
checkpoint whole (weights, optimizer, schedule, random numbers of every rank, cursor, best and newest
losses). TRACKS_RESUME_SEED chooses the moments and the later kills; a failure prints it. The full set
draws a new one.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import pytest

from tests.training import noisy_trainer
from tests.training.gangs import Gang, TrainingRun
from tests.training.noisy_trainer import MOMENTS, Kill, Plan
from tests.training.resume_faults import FAULTS
from tracks_dagster.track.records import Json, canonical_json, sha256_hex

ASKED_FOR = os.environ.get("TRACKS_RESUME_SEED")
SEED = int(ASKED_FOR or 1)
FULL_SEED = int(ASKED_FOR or random.SystemRandom().randrange(2**32))
STEPS = 46
EVERY_STEPS = 3
FIRST_KILLS = range(1, 41)
KILLS = 3  # in a row, in one run
KILL_STEP_MAX = STEPS - 2
LATER_S_MAX = 0.03  # a save takes about as long


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A finished run. losses: (step, loss) of every attempt, as often as the step was run."""

    losses: frozenset[tuple[int, float]]
    final: Json
    resumed: tuple[int, ...]
    samples: frozenset[tuple[int, str]]


CalmRuns = Callable[[int, int], Trained]


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 2)])
def test_a_run_killed_three_times_ends_as_if_it_never_was(
    calm: CalmRuns, tmp_path: Path, ranks: int, workers: int
) -> None:
    rng = random.Random(f"{SEED} {ranks} {workers}")
    kills = kills_from(rng.choice(FIRST_KILLS), rng)
    print(f"TRACKS_RESUME_SEED={SEED}: {kills}")
    check(calm(ranks, workers), tmp_path, kills, ranks=ranks, workers=workers)


@pytest.mark.full
@pytest.mark.drawn(20)
@pytest.mark.parametrize("first", FIRST_KILLS)
def test_killed_at_every_step_nothing_changes(calm: CalmRuns, tmp_path: Path, first: int) -> None:
    ranks = 1 + (FULL_SEED + first) % 3  # a fresh seed: another number of ranks at every step
    workers = 2 * ((FULL_SEED // 3 + first) % 2)
    kills = kills_from(first, random.Random(f"{FULL_SEED} {ranks} {workers} {first}"))
    print(f"TRACKS_RESUME_SEED={FULL_SEED}: {kills}")
    check(calm(ranks, workers), tmp_path, kills, ranks=ranks, workers=workers)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_resume_that_is_broken_is_seen(calm: CalmRuns, tmp_path: Path, fault: str) -> None:
    kills = [Kill(step=12, moment="data")]
    broken = train(tmp_path, kills, ranks=3, fault=fault)
    assert broken.resumed[1] in (6, 9)  # the save of step 9 may still have been under way
    assert broken.final != calm(3, 0).final
    if fault != "not_rehearsed":  # rounding alone: from step 9 on no loss shows it
        assert broken.losses - calm(3, 0).losses


def test_loader_workers_change_nothing_and_the_seed_does(calm: CalmRuns, tmp_path: Path) -> None:
    assert calm(2, 0) == calm(2, 2)
    assert {step for step, _ in calm(2, 0).losses} == {*range(1, STEPS + 1)}
    other = train(tmp_path, ranks=2, seed=8)
    assert not other.losses & calm(2, 0).losses
    assert not other.samples & calm(2, 0).samples


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> CalmRuns:
    """Undisturbed runs by (ranks, workers), each trained once, when it is first asked for."""

    def undisturbed(ranks: int, workers: int) -> Trained:
        return train(tmp_path_factory.mktemp("calm"), ranks=ranks, workers=workers)

    return lru_cache(maxsize=None)(undisturbed)


def kills_from(first: int, rng: random.Random) -> list[Kill]:
    """Return three kills, the first one in step `first`, the others then or later."""
    later = sorted(rng.randint(first, KILL_STEP_MAX) for _ in range(KILLS - 1))
    delays_s = [0.0, *(rng.choice([0.0, rng.uniform(0.0, LATER_S_MAX)]) for _ in later)]
    return [
        Kill(step=step, moment=rng.choice(MOMENTS), later_s=delay_s)
        for step, delay_s in zip((first, *later), delays_s, strict=True)
    ]


def check(calm: Trained, folder: Path, kills: list[Kill], *, ranks: int, workers: int) -> None:
    """Train, killed so; everything must be as in `calm`."""
    killed = train(folder, kills, ranks=ranks, workers=workers)
    for kill, resumed in zip(kills, killed.resumed[1:], strict=True):
        newest = (kill.step - 1) // EVERY_STEPS * EVERY_STEPS  # may have been under way, but not
        assert resumed >= newest - EVERY_STEPS  # the one before: a save waits for it
    assert killed.losses == calm.losses
    assert killed.samples == calm.samples
    assert killed.final == calm.final


def train(
    folder: Path, kills: Iterable[Kill] = (), *, ranks: int, workers: int = 0, **plan: Json
) -> Trained:
    """Run an attempt for each kill, and one more to the end."""
    kills = tuple(kills)
    folder = folder / "run"
    Plan(steps=STEPS, workers=workers, kills=kills, **plan).write(folder)
    script = Path(noisy_trainer.__file__)
    run = TrainingRun(folder, ranks=ranks, steps=STEPS, every_steps=EVERY_STEPS, script=script)
    gangs = [run.train() for _ in kills]
    for gang in gangs:
        assert gang.exit_codes == [-9] * ranks, gang.log()
    gangs.append(run.train())
    assert gangs[-1].exit_codes == [0] * ranks, gangs[-1].log()
    steps = [line for gang in gangs for line in step_lines(gang)]
    return Trained(
        losses=frozenset((line["step"], line["loss"]) for line in steps),
        samples=frozenset((line["step"], line["indices_sha256"]) for line in steps),
        final=everything_in_the_last_checkpoint(run),
        resumed=tuple(attempt.resumed_step or 0 for attempt in run.state.attempts),
    )


def step_lines(gang: Gang) -> list[dict[str, Json]]:
    """Return the step lines of rank 0 as they lie on disk: a killed rank ships nothing more."""
    (path,) = gang.work.glob("journal/*/rank-0.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["kind"] == "step"]


def everything_in_the_last_checkpoint(run: TrainingRun) -> Json:
    """Return the hashes of all tensors' bytes, and all that is said beside them."""
    final = run.final()
    assert final.step == STEPS
    manifest = run.manifest_of(final)
    said = canonical_json({name: asdict(member) for name, member in manifest.members.items()})
    return [[chunk.blake3 for chunk in manifest.chunks], sha256_hex(said)]
