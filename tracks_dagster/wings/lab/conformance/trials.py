"""Which trials a trainer goes through: at which steps it is interrupted, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tracks_dagster.wings.lab.conformance.seen import AttemptSeen, Kind, Trial

FAULT_STEP = 2  # early: the step before shows that it trains


def interruptions(calm: AttemptSeen) -> tuple[int, ...]:
    """Return the steps after which a run is interrupted, the most telling first.

    After the step that follows a commit (something is lost), at the commit, after the first step and
    the last but one, and on both sides of the end of an epoch. Where the trainer tells of no such
    step, after the next one that it tells of.
    """
    last = calm.last_step
    commits = [step for step in calm.commits if step < last]
    epoch = epoch_of(calm)
    wanted = [commits[0] + 1, commits[0]] if commits else []
    wanted += [1, last - 1]
    wanted += [epoch, epoch + 1] if epoch is not None else []
    found = [next((step for step in calm.steps if step >= each), last) for each in wanted]
    return tuple(dict.fromkeys(step for step in found if step < last))


def epoch_of(calm: AttemptSeen) -> int | None:
    """Return the steps of an epoch by the script's own loader; None where it has no length."""
    for loader in calm.ranks[0].loaders if calm.ranks else ():
        steps = len(calm.losses)
        if loader.length and steps and loader.given >= steps:
            return -(-loader.length // (loader.given // steps))
    return None


def trials_of(
    calm: Mapping[tuple[int, int | None], AttemptSeen], *, faults: bool, steps_max: int
) -> list[Trial]:
    """Return the trials after the calm runs of each shape, (ranks, workers), the most telling first.

    faults: whether the script can be played an exception and NaN: it is Python. steps_max: at how many
    steps of each shape it is interrupted.
    """
    found: list[Trial] = []
    plans = {shape: interruptions(seen)[:steps_max] for shape, seen in calm.items()}
    (ranks, workers), _ = next(iter(calm.items()))
    if faults:
        for kind in (Kind.ERROR, Kind.NAN):
            found.append(Trial(kind=kind, step=FAULT_STEP, ranks=ranks, workers=workers))
    for index in range(max(map(len, plans.values()))):
        for (ranks, workers), steps in plans.items():
            for kind in (Kind.SIGKILL, Kind.SIGTERM) if index < len(steps) else ():
                found.append(Trial(kind=kind, step=steps[index], ranks=ranks, workers=workers))
        if not index:
            found += _amid_saves(calm)
    return found


def _amid_saves(calm: Mapping[tuple[int, int | None], AttemptSeen]) -> Iterator[Trial]:
    for (ranks, workers), seen in calm.items():
        step = next((each for each in seen.commits if each < seen.last_step), None)
        if step is not None:
            yield Trial(kind=Kind.SAVE, step=step, ranks=ranks, workers=workers)


def hangs(took_s: float, *, limit_s: float, load: float) -> bool:
    """Whether an attempt that has not ended by now hangs.

    limit_s: on a machine that has a core for each process; load: how many share one on this machine.
    """
    return took_s > limit_s * max(1.0, load)
