"""No module of the product is in an import cycle, and none binds a name twice."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
DECIDE_MODULES_MAX = 40  # that a reader of `decide` may have to open
PACKAGES = ("tracks_dagster",)


def modules() -> dict[str, Path]:
    """Return every module of the product by its dotted name; an example is a project of its user's."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if path.is_relative_to(ROOT / package / "examples"):
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules that `path` imports when it is imported; not those for types, or later."""
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names if alias.name in known)
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            for alias in statement.names:
                name = f"{statement.module}.{alias.name}"
                yield name if name in known else statement.module


def test_no_module_of_the_product_is_in_an_import_cycle() -> None:
    known = modules()
    assert len(known) > 100
    graph = {
        name: {each for each in imported(path, known) if each in known}
        for name, path in known.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_decide_imports_at_most_forty_modules_by_whatever_way() -> None:
    known, start = modules(), "tracks_dagster.retry.decide"
    reached, chains = [start], {start: start}
    for name in reached:  # which grows; the shortest chain to each module comes first
        for each in imported(known[name], known):
            if each in known and each not in chains:
                reached.append(each)
                chains[each] = f"{chains[name]} → {each}"
    others = sorted(chains[each] for each in reached[1:])
    assert len(others) <= DECIDE_MODULES_MAX, "\n".join([f"{len(others)}, by:", *others])


def test_no_module_binds_a_name_twice() -> None:
    twice = []
    for name, path in modules().items():
        bound = Counter(
            each.id
            for statement in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(statement, ast.Assign)
            for target in statement.targets
            for each in ast.walk(target)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        )
        twice += [f"{name}.{each}" for each, count in bound.items() if count > 1]
    assert twice == []  # the second value would also be the first one's
