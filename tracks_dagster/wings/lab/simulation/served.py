"""What became of each submission of a played queue, and what starting and moving took. Pure values."""

from __future__ import annotations

from dataclasses import dataclass

from tracks_dagster.wings.lab.simulation.workloads import Submission, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What starting, moving and ending take, in seconds.

    bring_up_s: from the devices to the first step; tear_down_s: from the last step until the devices
    are free; save_s: a checkpoint on request. notice_s: how long one that is moved has for it; None:
    as long as it takes, as in the live queue. step_s: a step, for counting what is lost.
    """

    bring_up_s: float = 0.0
    tear_down_s: float = 0.0
    save_s: float = 0.0
    notice_s: float | None = None
    step_s: float = 1.0

    @property
    def idle_s_max(self) -> float:
        """The longest that a device may be held without work in one go: moved before its first step."""
        return self.bring_up_s + self.tear_down_s


NO_OVERHEADS = Overheads()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """One time that a submission had its devices.

    It held them from `began_s` to `freed_s` and worked from `works_s` to `worked_s`, a save included.
    lost_s: work of it that had to be done again. is_moved: it made room for another.
    """

    devices: tuple[str, ...]
    began_s: float
    works_s: float
    worked_s: float
    freed_s: float
    lost_s: float = 0.0
    is_moved: bool = False

    @property
    def idle_s(self) -> float:
        """The longest that it held its devices without work in one go."""
        if self.worked_s <= self.works_s:
            return self.freed_s - self.began_s
        return max(self.works_s - self.began_s, self.freed_s - self.worked_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What became of a submission. why_not: why it never ran to its end, None where it did.

    expected_s: how long it was predicted to work when it first waited, None where nobody knew.
    """

    submission: Submission
    stays: tuple[Stay, ...]
    expected_s: float | None = None
    why_not: str | None = None

    @property
    def wait_s(self) -> float | None:
        """From its submission to its first devices."""
        return self.stays[0].began_s - self.submission.at_s if self.stays else None

    @property
    def completion_s(self) -> float | None:
        """From its submission to the end of its work."""
        if self.why_not is not None:
            return None
        return self.stays[-1].worked_s - self.submission.at_s

    @property
    def recoveries_s(self) -> tuple[float, ...]:
        """From each move to the next step."""
        pairs = zip(self.stays, self.stays[1:], strict=False)
        return tuple(after.works_s - before.worked_s for before, after in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A play, whole. Device seconds are of all devices that could be given.

    waited_free_s: device seconds that were free while something waited; of these fragmented_s: while
    nothing that waited fitted into what was free. decisions: how often the rules were asked.
    """

    workload: Workload
    overheads: Overheads
    served: tuple[Served, ...]
    began_s: float
    ended_s: float
    waited_free_s: float
    fragmented_s: float
    decisions: int

    @property
    def capacity_s(self) -> float:
        """Device seconds from the first submission to the last end."""
        usable = sum(device.out is None for device in self.workload.devices)
        return usable * (self.ended_s - self.began_s)

    @property
    def idle_held_s(self) -> float:
        """The longest that any device was held without work in one go."""
        return max((stay.idle_s for each in self.served for stay in each.stays), default=0.0)
