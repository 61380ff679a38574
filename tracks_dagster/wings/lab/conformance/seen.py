"""What a trial is, and what was seen of it. Pure.

`training.observing` writes a line of JSON for each thing that a rank sees of itself; `read_rank` puts
them together by step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tracks_dagster.track.records import Json

COMPLETED = "completed"  # the reason of an attempt that came to its end
TOO_SLOW = "too_slow"  # and of one that the time limit ended
HANG = "hang"  # and of one that took far longer than the undisturbed run
PLANTED = "planted by tracks conform: a trainer should say so"  # what a planted exception says


class Kind(Enum):
    """What a trial does to a run. The value is what a person reads."""

    CALM = "undisturbed"
    AGAIN = "undisturbed, again"
    SIGTERM = "SIGTERM"
    SIGKILL = "SIGKILL"
    SAVE = "SIGKILL during a save"
    ERROR = "an exception"
    NAN = "weights that become NaN"


INTERRUPTS = (Kind.SIGTERM, Kind.SIGKILL, Kind.SAVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of the trainer. step: after which it is interrupted, or in which the fault is played.

    workers: of the loader; None where the project has no such key.
    """

    kind: Kind
    step: int = 0
    ranks: int = 1
    workers: int | None = None

    @property
    def shape(self) -> str:
        """On how many ranks, with how many loader workers."""
        ranks = f"{self.ranks} rank{'s' * (self.ranks != 1)}"
        return ranks if self.workers is None else f"{ranks}, {self.workers} loader workers"

    def __str__(self) -> str:
        """Return what it is, in a few words."""
        between = "in" if self.kind in (Kind.ERROR, Kind.NAN) else "after"
        at = "" if self.kind in (Kind.CALM, Kind.AGAIN) else f" {between} step {self.step}"
        at = f" of step {self.step}" if self.kind is Kind.SAVE else at
        return f"{self.kind.value}{at} ({self.shape})"


State = tuple[str, float]  # a digest, and the sum of absolute values where it is of numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeen:
    """What one rank saw of one step.

    inputs: digests of the batches, in order; rows: of their samples. random: library → its generator
    when the model was first called. state: name → as it was before the step; of `trained` and
    `averaged` as it was after it. lr: of every optimizer's groups. attributes: what parts of the first
    module keep in Python, and whether each parameter is trained, as text by name.
    """

    inputs: tuple[str, ...] = ()
    rows: frozenset[str] = frozenset()
    random: Mapping[str, State] = field(default_factory=dict)
    state: Mapping[str, State] = field(default_factory=dict)
    lr: tuple[float, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)


NOT_SEEN = StepSeen()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """A loader's iterators made, batches given by all of them, and its length; None: not known.

    trained_again: how often a new iterator began with the batch that the one before began with, and the
    step trained on it.
    """

    made: int
    given: int
    length: int | None
    trained_again: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSeen:
    """What one rank saw of itself. files: paths that it wrote; saved: digests of the tensors that it
    last saved, by file and name; is_played: the fault came."""

    steps: Mapping[int, StepSeen] = field(default_factory=dict)
    loaders: tuple[Loader, ...] = ()
    files: frozenset[str] = frozenset()
    saved: Mapping[str, str] = field(default_factory=dict)
    is_played: bool = False

    def step(self, number: int) -> StepSeen:
        """Return what was seen of a step; nothing where it was not run."""
        return self.steps.get(number, NOT_SEEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSeen:
    """One attempt of a trial. resumed: the step it resumed from, 0 for a fresh start.

    samples: step → digest of the samples' indices, where the order is ours. commits: steps.
    reason: why it ended; words: what it said of that; was_killed: its ranks had to be. alerts: of
    saves that failed. half_written: folders seen to change after they had their final name.
    """

    resumed: int = 0
    losses: Mapping[int, float] = field(default_factory=dict)
    samples: Mapping[int, str] = field(default_factory=dict)
    ranks: tuple[RankSeen, ...] = ()
    commits: tuple[int, ...] = ()
    reason: str = COMPLETED
    words: str = ""
    was_killed: bool = False
    alerts: tuple[str, ...] = ()
    half_written: tuple[str, ...] = ()

    @property
    def steps(self) -> list[int]:
        """The steps that it reported or committed, in order: those that it can be interrupted after."""
        return sorted({*self.losses, *self.commits})

    @property
    def last_step(self) -> int:
        """The last step that it reported or committed."""
        return max(self.steps, default=self.resumed)

    @property
    def is_complete(self) -> bool:
        """Whether it came to its end."""
        return self.reason == COMPLETED


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSeen:
    """A trial with its attempts. contents: name → digest of all that its last checkpoint holds, and of
    what its ranks saved by themselves (`saved_contents`)."""

    trial: Trial
    attempts: tuple[AttemptSeen, ...]
    contents: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def last(self) -> AttemptSeen:
        """Its last attempt."""
        return self.attempts[-1]

    @property
    def was_missed(self) -> bool:
        """Whether it was to be killed, and came to its end before: nothing was tried."""
        is_kill = self.trial.kind in (Kind.SIGKILL, Kind.SAVE)
        return is_kill and len(self.attempts) == 1 and self.last.is_complete


SAVED = "rank "  # begins the names of what ranks saved by themselves


def saved_contents(ranks: Iterable[RankSeen]) -> dict[str, str]:
    """Return the tensors that ranks saved, as `contents` has them."""
    return {
        f"{SAVED}{number}'s {name}": digest
        for number, rank in enumerate(ranks)
        for name, digest in rank.saved.items()
    }


def read_rank(lines: Iterable[Mapping[str, Json]]) -> RankSeen:
    """Return what one rank saw, by the lines that `training.observing` wrote."""
    steps: dict[int, dict[str, Json]] = {}
    loaders: dict[int, Loader] = {}
    firsts: dict[int, tuple[int, list[str]]] = {}  # of each loader's newest iterator: step, batch
    attributes: dict[str, str] = {}
    files = set()
    saved: dict[str, str] = {}
    is_played = False
    for line in lines:
        step = steps.setdefault(
            line["step"],
            {
                "inputs": [],
                "rows": set(),
                "random": {},
                "state": {},
                "lr": (),
                "attributes": {},
            },
        )
        match line["what"]:
            case "input":
                step["inputs"].append(line["digest"])
                step["rows"].update(line["rows"])
            case "random":
                step["random"] = _states(line["state"]) | step["random"]
            case "state":
                states = _states(line["state"])
                if any(x.startswith("weights") and x not in step["state"] for x in states):
                    # An optimizer's first update in this step; each optimizer has weights of its own.
                    step["lr"] += tuple(line.get("lr", ()))
                for name, value in states.items():
                    if name.startswith(("trained", "averaged")):
                        step["state"][name] = value
                    else:
                        step["state"].setdefault(name, value)
            case "attributes":
                attributes = {**attributes, **line["attributes"]}
                step["attributes"] = attributes
            case "batch":
                earlier = loaders.get(line["loader"])
                is_first = earlier is None or line["made"] > earlier.made
                begins = firsts.get(line["loader"])
                again = earlier.trained_again if earlier else 0
                if is_first:
                    firsts[line["loader"]] = line["step"], line.get("digests", [])
                    if begins and begins[1] and begins[1] == line.get("digests"):
                        again += any(each in steps[begins[0]]["inputs"] for each in begins[1])
                loaders[line["loader"]] = Loader(
                    made=line["made"],
                    given=line["given"],
                    length=line["length"],
                    trained_again=again,
                )
            case "file":
                files.add(line["path"])
            case "saved":
                saved.update(line["tensors"])
            case "played":
                is_played = True
    return RankSeen(
        steps={
            number: StepSeen(
                inputs=tuple(each["inputs"]),
                rows=frozenset(each["rows"]),
                random=each["random"],
                state=each["state"],
                lr=each["lr"],
                attributes=each["attributes"],
            )
            for number, each in steps.items()
            if number > 0
        },
        loaders=tuple(loaders.values()),
        files=frozenset(files),
        saved=saved,
        is_played=is_played,
    )


def _states(stored: Mapping[str, Json]) -> dict[str, State]:
    return {name: (value[0], value[1]) for name, value in stored.items()}
