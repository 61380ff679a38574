"""How a study's configs are chosen: each proposal is a pure function of the study's fold.

The plug-in point is one method, `Search.propose`. A sampler of a library is one in `effects`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from tracks_dagster.studies.space import Config, Space, parse_space
from tracks_dagster.track.bodies import StudyDeclared
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import canonical_json
from tracks_dagster.track.states.study_state import StudyState, TrialStatus

GRID, RANDOM, EVOLUTION = "grid", "random", "evolution"
OF_LIBRARY = ("tpe", "gp", "cmaes", "nsga2")  # `studies.effects.optuna_search`
SEARCHES = (GRID, RANDOM, EVOLUTION, *OF_LIBRARY)
START = "start"  # in every search: configs that are tried first
PRIORS = "priors"  # of a library's: earlier trials, each with its config and value
PRIORS_OF = "priors_of"  # the names by which they were asked for

# A generation of 24: 8 parents, each times 1.2 and times 0.7, and 8 immigrants.
PARENTS, UP, DOWN = 8, 1.2, 0.7
GENERATION = 3 * PARENTS
GRIDS_MAX = 2  # that a process remembers: of 100 000 configs each some 50 MB
CHILD_TRIES_MAX = 8  # until one differs from all that were tried; else an immigrant is taken


@dataclass(frozen=True, slots=True)
class Waits:
    """Nothing can be proposed before something else is known. Where no trial trains, the scheduler
    decides on those that are paused as if all were proposed."""

    why: str


class Search(Protocol):
    """Chooses configs. One object serves one look at one study."""

    def propose(self, study: StudyState, number: int) -> Config | Waits | None:
        """Return the config of the trial `number`, the next; None where there is none any more.

        The same study and number return the same config, in every process. Raises InvalidInput.
        """
        ...


def space_of(declared: StudyDeclared) -> Space:
    """Return the space of a study."""
    return parse_space(declared.space, declared.constraints, declared.run.config)


def generator(study: StudyDeclared, *place: object) -> random.Random:
    """Return the random numbers of one place of a study, the same in every process."""
    return random.Random("/".join(map(str, (study.seed, study.study, *place))))


def grid_of(space: Space, start: Sequence[Config]) -> Sequence[Config]:
    """Return the configs to start with, then the others of the grid."""
    return [*start, *(each for each in space.grid() if each not in start)]


@dataclass(frozen=True, slots=True)
class Grid:
    """Every config of the grid, once; those to start with come first."""

    space: Space

    def propose(self, study: StudyState, number: int) -> Config | Waits | None:
        """Return the config of that number."""
        declared = study.declared
        parts = (declared.space, declared.constraints, declared.run.config)
        found = _whole_grid(canonical_json([*parts, declared.search.get(START, ())]))
        return found[number] if number < len(found) else None


@lru_cache(GRIDS_MAX)
def _whole_grid(declared: bytes) -> Sequence[Config]:
    """Return a grid by what of its study it follows from, as JSON: 100 000 configs take seconds."""
    space, constraints, fixed, start = parse_json(declared)
    return grid_of(parse_space(space, tuple(constraints), fixed), start)


@dataclass(frozen=True, slots=True)
class Random:
    """Configs that are drawn independently of each other."""

    space: Space

    def propose(self, study: StudyState, number: int) -> Config | Waits | None:
        """Return a random config."""
        return self.space.draw(generator(study.declared, number))


@dataclass(frozen=True, slots=True)
class Evolution:
    """Generations of 24: the first is random; of each, the best 8 are the parents of the next."""

    space: Space

    def propose(self, study: StudyState, number: int) -> Config | Waits | None:
        """Return a parent's config, changed, or an immigrant's; waits for the generation before."""
        generation, place = divmod(number, GENERATION)
        immigrant = Random(self.space).propose(study, number)
        if generation == 0 or place >= 2 * PARENTS:
            return immigrant
        before = study.trials[(generation - 1) * GENERATION : generation * GENERATION]
        open_count = sum(t.status in (TrialStatus.OPEN, TrialStatus.PAUSED) for t in before)
        if open_count:
            return Waits(f"{open_count} trials of generation {generation} are not over")
        ranked = sorted(
            (-len(t.rungs), study.loss_of(judged), t.number)
            for t in before
            if (judged := t.last.judged) is not None and judged.value is not None
        )
        parents = [study.trials[number] for *_, number in ranked[:PARENTS]]
        if not parents:
            return immigrant
        parent, factor = parents[place % PARENTS % len(parents)], UP if place < PARENTS else DOWN
        known = [each.config for each in study.trials]
        rng = generator(study.declared, "child", number)
        return self._child(parent.config, factor, known, rng) or immigrant

    def _child(
        self, parent: Config, factor: float, known: Sequence[Config], rng: random.Random
    ) -> Config | None:
        """Return a parent's config with its numbers times the factor, and one of its choices moved in
        every second one; None where only such were found that a constraint forbids, or are known."""
        for _ in range(CHILD_TRIES_MAX):
            base = self.space.with_choice_moved(parent, rng) if rng.random() < 0.5 else parent
            child = self.space.scaled(base, lambda _: factor, rng)
            if child is not None and child not in known:
                return child
        return None


def own_search(declared: StudyDeclared) -> Search:
    """Return the search of a study whose kind is one of ours."""
    makers: Mapping[str, type[Grid] | type[Random] | type[Evolution]] = {
        GRID: Grid,
        RANDOM: Random,
        EVOLUTION: Evolution,
    }
    return makers[declared.search["kind"]](space_of(declared))


def generation_of(declared: StudyDeclared, number: int) -> int:
    """Return the generation of a trial, 0-based: its search waits for the end of the one before."""
    return number // GENERATION if declared.search["kind"] == EVOLUTION else 0


def proposal(search: Search, study: StudyState) -> Config | Waits | None:
    """Return the next config: one of those to start with, then what the search proposes."""
    number = len(study.trials)
    first = study.declared.search.get(START, ())
    return first[number] if number < len(first) else search.propose(study, number)
