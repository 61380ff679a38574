"""What a queue is played on: submissions and the devices that they ask for. Pure.

Four workloads are made here. `eight_nodes` is small enough to follow by hand. `pai` and `acme` draw
as many submissions as wanted, so that the published shares of two large clusters come out; what was
not published is assumed, and said beside each. `generated` is half of each on the same devices. The
same seed gives the same workload.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from tracks_dagster.scheduling.model import Device

HOUR_S = 3600.0
MINUTE_S = 60.0
DAY_S = 86_400.0
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What somebody wants to run.

    name: unlike any other's. at_s: when it is submitted. devices: of its gang, all at once.
    memory_share: of one device's memory where it may share that device, above 0 and at most 1; None:
    it takes its devices alone. work_s: how long it works on them, starting and saving apart. task: the
    name under which it comes back; "" for what runs once. estimate_s: the time its owner gives for
    it, None where nobody does. saves_every_s: work between two checkpoints; None: it never saves.
    near: names or nodes that it should be close to.
    """

    name: str
    at_s: float
    devices: int
    work_s: float
    memory_share: float | None = None
    workload_class: str = ""
    team: str = ""
    owner: str = ""
    task: str = ""
    estimate_s: float | None = None
    saves_every_s: float | None = None
    kind: str = ""
    near: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        share, saves, estimate = self.memory_share, self.saves_every_s, self.estimate_s
        if not (math.isfinite(self.at_s) and self.at_s >= 0 and 0 < self.work_s < math.inf):
            raise ValueError(
                f"{self.name}: it is submitted at 0 s or later and works more than 0 s."
            )
        if self.devices < 1 or (share is not None and not (0 < share <= 1 and self.devices == 1)):
            raise ValueError(f"{self.name}: it takes 1 device or more, or a share of one.")
        if (saves is not None and saves <= 0) or (estimate is not None and estimate <= 0):
            raise ValueError(f"{self.name}: an estimate and a time between saves are above 0 s.")

    @property
    def weight(self) -> float:
        """Devices that it holds; of a shared one its share."""
        return self.devices * (1.0 if self.memory_share is None else self.memory_share)

    @property
    def device_s(self) -> float:
        """Device seconds of its work."""
        return self.work_s * self.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Submissions, in the order of their times, and the devices. origin: where they come from."""

    name: str
    submissions: tuple[Submission, ...]
    devices: tuple[Device, ...]
    origin: str


def cluster(
    nodes: int, devices_per_node: int, *, memory_bytes: int | None = None, kind: str = ""
) -> tuple[Device, ...]:
    """Return the devices of equal nodes: "n1/0", "n1/1", …"""
    return tuple(
        Device(
            name=f"n{node}/{index}",
            node=f"n{node}",
            kind=kind,
            memory_bytes=memory_bytes,
        )
        for node in range(1, nodes + 1)
        for index in range(devices_per_node)
    )


# --- eight nodes, by hand -------------------------------------------------------------------------

EIGHT_NODES = "eight-nodes"


def eight_nodes() -> Workload:
    """Return a day's queue on eight nodes of one device each, every time known beforehand.

    One of everything that a policy is for: a gang that blocks the line (`wide`), what fits into the
    gap before it (`short`) and what does not (`long`), one team's sweep in front of another team's
    single trial, an eval of five minutes, and a run that cannot wait.
    """
    given = (
        ("base", 0.0, 6, 4.0, "distributed", "language", 0.5),
        ("wide", 0.25, 8, 2.0, "distributed", "vision", 0.5),
        ("short", 0.5, 2, 3.0, "single", "speech", 0.5),
        ("long", 0.75, 2, 5.0, "single", "speech", None),
        *((f"sweep-{n}", 1.0, 2, 2.0, "sweep", "language", 0.25) for n in range(1, 9)),
        ("trial", 1.25, 2, 1.0, "sweep", "vision", None),
        ("eval", 2.0, 1, 1 / 12, "eval", "language", None),
        ("urgent", 7.0, 4, 1.0, "urgent", "vision", 0.25),
    )
    return Workload(
        name=EIGHT_NODES,
        submissions=tuple(
            Submission(
                name=name,
                at_s=at_h * HOUR_S,
                devices=devices,
                work_s=work_h * HOUR_S,
                workload_class=workload_class,
                team=team,
                owner=team,
                estimate_s=work_h * HOUR_S,
                saves_every_s=None if saves_h is None else saves_h * HOUR_S,
            )
            for name, at_h, devices, work_h, workload_class, team, saves_h in given
        ),
        devices=cluster(8, 1),
        origin="made to be followed by hand; every time is known beforehand",
    )


# --- drawn ----------------------------------------------------------------------------------------

NODES, DEVICES_PER_NODE, MEMORY_BYTES = 8, 8, 80 * GIB  # of a drawn workload, by default
LOAD = 0.8  # device time that is asked for over what there is, while submissions come
TEAMS = ("language", "vision", "speech", "search", "ads", "robots")
TEAM_WEIGHTS = (8, 4, 2, 2, 1, 1)  # a few teams ask for most
SAVES_EVERY_S = 30 * MINUTE_S  # of what works longer than that

# Weng et al., "MLaaS in the Wild" (NSDI 2022), two months of Alibaba's PAI: the median task asks for
# 0.042 of a GPU, and 65 % of the tasks come at least five times.
PAI = "pai"
PAI_SHARE_MEDIAN = 0.042
PAI_RECURRING = 0.65
PAI_RECURS_MIN = 5
# Assumed: how far shares and times spread, and how alike two times of one task are.
PAI_SHARE_SIGMA = 1.8  # of the logarithm; 4 % then ask for a whole device or more
PAI_DEVICES_MAX = 8
PAI_WORK_S_MEDIAN = 20 * MINUTE_S
PAI_WORK_SIGMA = 1.6
PAI_WORK_S_MAX = 3 * DAY_S
PAI_AGAIN_SIGMA = 0.2
PAI_RECURS_MEAN = 40  # of a task that comes five times or more

# Hu et al., "Characterization of Large Language Model Development in the Datacenter" (NSDI 2024), the
# cluster Kalos of Acme: pretraining is 3.2 % of the jobs and 94.0 % of the GPU time, evaluation 92.9 %
# of the jobs and 0.8 % of the time. The rest are fine-tuning, debugging and others.
ACME = "acme"
ACME_JOBS: Mapping[str, float] = {"distributed": 0.032, "eval": 0.929, "single": 0.039}
ACME_DEVICE_TIME: Mapping[str, float] = {"distributed": 0.940, "eval": 0.008, "single": 0.052}
# Assumed: how long an eval takes, how many are asked for at once, how many devices a gang has, and how
# far times spread. The shares above then fix how long everything else takes on average.
ACME_EVAL_S_MEAN = 3 * MINUTE_S
ACME_EVAL_SETS = 30  # asked for together, as when a checkpoint is done
ACME_DEVICES: Mapping[str, Sequence[int]] = {
    "distributed": (8, 16, 16, 32),
    "eval": (1,),
    "single": (1, 2, 4),
}
ACME_WORK_SIGMA: Mapping[str, float] = {"distributed": 0.8, "eval": 0.5, "single": 1.0}
ACME_AGAIN_SIGMA = 0.1  # of one set

GENERATED = "generated"  # both at once


def pai(count: int, *, seed: int, devices: Sequence[Device]) -> Workload:
    """Return `count` submissions that ask for shares of devices as in Alibaba's PAI.

    A share of a GPU is taken as a share of its memory: below one device, the submission shares it with
    others as long as their shares fit. Nothing becomes slower by that.
    """
    chance = random.Random(seed)
    times = list(_repeats(chance, count))
    chance.shuffle(times)
    shares = NormalDist(math.log(PAI_SHARE_MEDIAN), PAI_SHARE_SIGMA)
    most = max(1, min(PAI_DEVICES_MAX, len(devices)))
    groups: list[Sequence[Submission]] = []
    drawn = 0
    for task, again in enumerate(times):
        # Spread evenly over the quantiles by how often a task comes: the median is right in a small
        # workload too, where one frequent task would move it.
        asked = math.exp(shares.inv_cdf((drawn + again / 2) / count))
        drawn += again
        groups += [[each] for each in _pai_task(chance, f"task-{task}", again, asked, most)]
    return _submitted(chance, PAI, groups, devices)


def acme(count: int, *, seed: int, devices: Sequence[Device]) -> Workload:
    """Return `count` submissions with the shares of jobs and of device time of Acme's Kalos.

    A gang takes at most half of the devices.
    """
    chance = random.Random(seed)
    counts = _counts(ACME_JOBS, count)
    groups: list[Sequence[Submission]] = []
    for workload_class, number in counts.items():
        most = max(1, len(devices) // 2)
        sizes = [size for size in ACME_DEVICES[workload_class] if size <= most] or [1]
        if workload_class == "eval":
            drawn = _evals(chance, number)
        else:
            drawn = [[_training(chance, workload_class, i, sizes)] for i in range(number)]
        share = ACME_DEVICE_TIME[workload_class] / ACME_DEVICE_TIME["eval"]
        asked_s = sum(each.device_s for group in drawn for each in group)
        scale = counts["eval"] * ACME_EVAL_S_MEAN * share / (asked_s or 1.0)
        groups += [[_scaled(each, scale) for each in group] for group in drawn]
    return _submitted(chance, ACME, groups, devices)


def generated(count: int, *, seed: int, devices: Sequence[Device]) -> Workload:
    """Return `count` submissions, half of them as `pai` makes them, half as `acme`, all at once."""
    halves = (
        pai(count - count // 2, seed=seed, devices=devices),
        acme(count // 2, seed=seed, devices=devices),
    )
    together_s = sum(_window_s(half.submissions, devices) for half in halves)
    submissions = [
        replace(each, at_s=each.at_s * together_s / (_window_s(half.submissions, devices) or 1.0))
        for half in halves
        for each in half.submissions
    ]
    return Workload(
        name=GENERATED,
        submissions=tuple(sorted(submissions, key=lambda each: each.at_s)),
        devices=tuple(devices),
        origin=_ORIGINS[GENERATED],
    )


def _repeats(chance: random.Random, count: int) -> Iterator[int]:
    """Yield how often each task comes, `count` in all; the published share is in tasks that recur."""
    recurring = round(count * PAI_RECURRING)
    recurring = recurring if recurring >= PAI_RECURS_MIN else 0
    once = count - recurring
    while recurring:
        times = PAI_RECURS_MIN + int(chance.expovariate(1 / (PAI_RECURS_MEAN - PAI_RECURS_MIN)))
        # what is left may not be too little for a task of its own
        times = times if recurring - times >= PAI_RECURS_MIN else recurring
        recurring -= times
        yield times
    while once:
        times = min(chance.randint(1, PAI_RECURS_MIN - 1), once)
        once -= times
        yield times


def _pai_task(
    chance: random.Random, task: str, times: int, asked: float, devices_max: int
) -> Iterator[Submission]:
    """Yield one task as often as it comes. asked: devices, or a share of one."""
    devices = min(devices_max, 2 ** round(math.log2(asked))) if asked > 1 else 1
    typical_s = PAI_WORK_S_MEDIAN * math.exp(chance.gauss(0.0, PAI_WORK_SIGMA))
    team = _team(chance)
    for number in range(times):
        work_s = typical_s * math.exp(chance.gauss(0.0, PAI_AGAIN_SIGMA))
        submission = Submission(
            name=f"{task}-{number}",
            at_s=0.0,
            devices=devices,
            memory_share=None if asked > 1 else max(0.001, round(asked, 3)),
            work_s=1.0,
            workload_class="single" if devices == 1 else "distributed",
            team=team,
            owner=team,
            task=task,
        )
        yield _scaled(submission, min(max(1.0, work_s), PAI_WORK_S_MAX))


def _evals(chance: random.Random, count: int) -> list[list[Submission]]:
    """Return evals, one of each set together; `work_s` is not yet to scale."""
    typical_s = [
        math.exp(chance.gauss(0.0, ACME_WORK_SIGMA["eval"])) for _ in range(ACME_EVAL_SETS)
    ]
    found: list[list[Submission]] = []
    for first in range(0, count, ACME_EVAL_SETS):
        team = _team(chance)
        found.append(
            [
                Submission(
                    name=f"eval-{first + index}",
                    at_s=0.0,
                    devices=1,
                    work_s=typical_s[index] * math.exp(chance.gauss(0.0, ACME_AGAIN_SIGMA)),
                    workload_class="eval",
                    team=team,
                    owner=team,
                    task=f"eval-set-{index}",
                )
                for index in range(min(ACME_EVAL_SETS, count - first))
            ]
        )
    return found


def _training(
    chance: random.Random, workload_class: str, number: int, sizes: Sequence[int]
) -> Submission:
    """Return one training that does not recur; `work_s` is not yet to scale."""
    team = _team(chance)
    return Submission(
        name=f"{workload_class}-{number}",
        at_s=0.0,
        devices=chance.choice(sizes),
        work_s=math.exp(chance.gauss(0.0, ACME_WORK_SIGMA[workload_class])),
        workload_class=workload_class,
        team=team,
        owner=team,
    )


def _scaled(submission: Submission, scale: float) -> Submission:
    """Return it with its work times `scale`, and saved while it works where that is long."""
    work_s = submission.work_s * scale
    saves_every_s = SAVES_EVERY_S if work_s > SAVES_EVERY_S else None
    return replace(submission, work_s=work_s, saves_every_s=saves_every_s)


def _team(chance: random.Random) -> str:
    return chance.choices(TEAMS, TEAM_WEIGHTS)[0]


def _counts(shares: Mapping[str, float], count: int) -> dict[str, int]:
    """Return whole numbers with these shares, `count` in all; rounding is the largest's."""
    counts = {name: round(share * count) for name, share in shares.items()}
    largest = max(shares, key=lambda name: shares[name])
    counts[largest] += count - sum(counts.values())
    return counts


def _submitted(
    chance: random.Random,
    name: str,
    groups: Sequence[Sequence[Submission]],
    devices: Sequence[Device],
) -> Workload:
    """Let each group be submitted at a random time, over as long as makes the load."""
    window_s = _window_s([each for group in groups for each in group], devices)
    timed = [(chance.uniform(0.0, window_s), group) for group in groups]
    timed.sort(key=lambda each: each[0])
    return Workload(
        name=name,
        submissions=tuple(replace(each, at_s=at_s) for at_s, group in timed for each in group),
        devices=tuple(devices),
        origin=_ORIGINS[name],
    )


def _window_s(submissions: Sequence[Submission], devices: Sequence[Device]) -> float:
    """Return over how long they are submitted to make the load."""
    return sum(each.device_s for each in submissions) / (len(devices) * LOAD)


_ORIGINS = {
    GENERATED: "drawn: half of the submissions as pai, half as acme, at the same time",
    PAI: (
        "drawn: a median of 0.042 of a device and 65 % of tasks that come five times or more are "
        "Alibaba PAI's; times, larger sizes and teams are assumed"
    ),
    ACME: (
        "drawn: 3.2 % of jobs with 94.0 % of the device time, and 92.9 % evals with 0.8 % of it, are "
        "Acme's; the length of an eval, gang sizes and teams are assumed"
    ),
}
