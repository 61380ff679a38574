"""Which devices of a machine gangs and evals are given, as a person says in TRACKS_DEVICES. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tracks_dagster.track.errors import InvalidInput

CPU = "cpu"  # the kind of a slot on CPUs: a rank, whatever memory it takes
DEVICES_MAX = 1024  # of one machine
_UUID = re.compile(r"(?:GPU|MIG)-[A-Za-z0-9/_-]{1,80}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesGiven:
    """What TRACKS_DEVICES says: so many pretended devices, so many slots on CPUs, or these devices by
    name and no others. Nothing of it: what there is."""

    pretended: int | None = None
    slots: int | None = None
    names: tuple[str, ...] | None = None

    @property
    def hides_gpus(self) -> bool:
        """Whether gangs and evals must see no accelerator."""
        return self.pretended is not None or self.slots is not None


def parse_given(text: str, visible: str | None) -> DevicesGiven:
    """Read TRACKS_DEVICES, else CUDA_VISIBLE_DEVICES (`visible`; None where it is not set), which
    keeps a person's other devices out of it; raises InvalidInput with what is valid."""
    if not text:
        if visible is None:
            return DevicesGiven()
        return DevicesGiven(names=tuple(n for n in _names(visible) if not n.startswith("-")))
    kind, separator, count = text.partition(":")
    number = count if kind == CPU and separator else text
    if number.isdigit():
        if not 1 <= int(number) <= DEVICES_MAX:
            raise InvalidInput(f"TRACKS_DEVICES is {text!r}; use 1 to {DEVICES_MAX} of them.")
        is_cpu = bool(separator)
        return DevicesGiven(slots=int(number)) if is_cpu else DevicesGiven(pretended=int(number))
    names = _names(text)
    wrong = [name for name in names if not is_uuid(name)]
    if wrong or not names or len(set(names)) < len(names):
        raise InvalidInput(
            f"TRACKS_DEVICES is {text!r}: write 4 for four pretended devices, cpu:8 for eight slots on "
            "CPUs, or the UUIDs of the devices to use as `nvidia-smi -L` lists them, separated by "
            "commas and each once."
        )
    return DevicesGiven(names=names)


def cpu_threads(given: DevicesGiven, cpus: int) -> int:
    """Return how many threads torch gets in a rank on the CPU: its slot's share of the cores.

    8 cores in `cpu:2` are 4 threads each; without slots that are given, each core is one.
    """
    return max(1, cpus // given.slots) if given.slots else 1


def is_uuid(name: str) -> bool:
    """Whether a device's name is a UUID: it is not a slot and not pretended."""
    return _UUID.fullmatch(name) is not None


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
