"""`./run test --changed[=REF]`: the test files that a change can break, by what they import and start.

A test file needs what it and its helpers import, and what that imports in turn; the fixtures that it
takes; the modules that its strings name (`-m package.module`), or that a module names which it imports
itself; the commands that it calls by name. A file that is not a module counts as a change of the
modules that name it. What whole gangs, daemons and browsers run cannot be read from a test: `STARTS`
has it by room. This is for the daily loop: CI runs every test.
"""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import grimp

PACKAGES = ("tracks_dagster", "assets", "resources", "sensors", "benchmarks")
# Every test needs these. tests/time_sums.py: asserted of every run that any test projects.
EVERYTHING = (
    *("pyproject.toml", "constraints.txt", "run", "tests/conftest.py", "tests/time_sums.py"),
    *("tracks_dagster/__init__.py", "tracks_dagster/pytest_plugin.py"),
)
# By the start of a test's path, the first that fits: the rooms that its processes run.
STARTS = {
    "tests/integration/test_board": ("tracks_dagster.wings.watch",),
    "tests/integration/": PACKAGES[:-1],
    "tests/real/": (
        "tracks_dagster.training",
        "tracks_dagster.attempts",
        "tracks_dagster.evals",
        "tracks_dagster.cli.start",
    ),
}
COMMANDS, WING, WINGS = "tracks_dagster.cli", "tracks_dagster.wing", "tracks_dagster.wings"
NAMED = re.compile(rf"\b(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
GIT_S_MAX = 30.0
PATHS_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Part:
    """A module, or a function of a conftest. names: what it uses and takes; words: its strings."""

    imports: frozenset[str]
    names: frozenset[str]
    words: frozenset[str]


class Tree:
    """The modules of the checkout at `root` by their dotted names, and what needs what."""

    def __init__(self, root: Path) -> None:
        packages = [each for each in (*PACKAGES, "tests") if (root / each).is_dir()]
        files = [file for each in packages for file in sorted((root / each).rglob("*.py"))]
        self.paths = {
            module_of(path): path for path in (f.relative_to(root).as_posix() for f in files)
        }
        self.tests = [path for path in self.paths.values() if Path(path).name.startswith("test_")]
        self._parsed = cache(lambda name: ast.parse((root / self.paths[name]).read_text("utf-8")))

        sys.path.insert(0, str(root))  # where grimp finds the packages
        graph = grimp.build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)
        self._imports = {
            name: frozenset(graph.find_modules_directly_imported_by(name))
            for name in self.paths.keys() & graph.modules
        }
        self._needed_by = defaultdict[str, set[str]](set)
        for name, imports in self._imports.items():
            for each in (*imports, *_parents(name)):
                self._needed_by[each].add(name)
            if name.rpartition(".")[0] == WINGS:
                self._needed_by[name].add(WING)  # which imports it by name
        self._part = cache(self._read)
        self._fixtures = {
            path.removesuffix("conftest.py"): _functions(self._parsed(name))
            for name, path in self.paths.items()
            if path.endswith("/conftest.py")
        }
        self._commands = {
            node.name.removesuffix("_command"): name
            for name in self.paths
            if name.startswith((f"{COMMANDS}.", f"{WINGS}."))
            for node in self._parsed(name).body
            if isinstance(node, ast.FunctionDef) and node.name.endswith("_command")
        }
        self._above_commands = self.dependents({COMMANDS})

    def _read(self, name: str) -> Part:
        names, words = _names_and_words(self._parsed(name))
        return Part(self._imports.get(name, frozenset()), names, words)

    def dependents(self, modules: Iterable[str]) -> set[str]:
        """Return these modules, what they are packages of, and all that imports any of it."""
        found, open_ = set[str](), list(modules)
        while open_:
            if (name := open_.pop()) not in found:
                found.add(name)
                open_ += self._needed_by[name]
        return found

    def needs(self, test: str) -> set[str]:
        """Return the modules that a test file needs at first hand; what these import is not in it."""
        helpers, parts = self._beside(test)
        words = {word for part in parts for word in part.words}
        imports = {each for part in parts for each in part.imports if not each.startswith("tests.")}
        started = {word for name in imports & self.paths.keys() for word in self._part(name).words}
        needed = helpers | imports
        for named in (name for word in words | started for name in NAMED.findall(word)):
            needed.add(next((n for n in (named, *_parents(named)) if n in self.paths), named))
        if needed & self._above_commands:
            called = {each for word in words for each in re.split(r"[^\w-]+", word)}
            needed |= {self._commands[each] for each in called & self._commands.keys()}
        rooms = next((rooms for start, rooms in STARTS.items() if test.startswith(start)), ())
        whole = words.intersection(PACKAGES).union(rooms)  # as a string: its sources are read
        inside = {each for each in self.paths if whole.intersection((each, *_parents(each)))}
        return needed | inside | {f"{each}.*" for each in whole}

    def _beside(self, test: str) -> tuple[set[str], list[Part]]:
        """Return the names of a test's module and its helpers; these and their fixtures as parts."""
        functions = [each for folder, each in self._fixtures.items() if test.startswith(folder)]
        helpers, taken, parts = set[str](), set[str](), list[Part]()
        modules = [module_of(test)]
        while modules:
            name = modules.pop()
            if name in helpers or name not in self.paths or name.endswith(".conftest"):
                continue
            helpers.add(name)
            fresh = [self._part(name)]
            while fresh:
                part = fresh.pop()
                parts.append(part)
                modules += (each for each in part.imports if each.startswith("tests."))
                wanted = (part.names | part.words) - taken
                taken |= wanted
                fresh += (each[name] for each in functions for name in wanted & each.keys())
        return helpers, parts

    def owners(self, path: str) -> set[str]:
        """Return the modules that a path is a part of: itself, or those that import or name it."""
        name, file = module_of(path), Path(path)
        if name in self.paths and path.endswith(".py"):
            return {name}
        is_inside = file.parts[0] in (*PACKAGES, "tests")
        readers = {f"{file.parts[0]}.*"}
        if is_inside and path.endswith(".py"):  # it has gone
            return readers | {
                each
                for each in self.paths
                for node in ast.walk(self._parsed(each))
                if any(name in origins for origins in _bound_by(node).values())
            }
        called = {file.name, path} | (set() if is_inside else {file.parts[0]})
        found = {each for each in self.paths if called & self._part(each).words}
        if not is_inside:
            return found
        beside = next(
            modules
            for folder in file.parents
            if (modules := {n for n, each in self.paths.items() if Path(each).parent == folder})
        )
        named = {each for each in beside if file.stem in self._part(each).words}
        return readers | (found | named or beside)


def select(tree: Tree, changed: Iterable[str]) -> tuple[list[str], str]:
    """Return the test files that a change of these paths can break, and a line that says why."""
    changed = sorted(set(changed))
    owners = {owner for path in changed for owner in tree.owners(path)}
    if whole := [path for path in changed if path in EVERYTHING]:
        return tree.tests, f"all {len(tree.tests)} test files, which all need {_shown(whole)}"
    affected = tree.dependents(owners)
    folders = tuple(
        tree.paths[name].removesuffix("conftest.py")
        for name in owners
        if name.endswith(".conftest")
    )
    chosen = [
        each
        for each in tree.tests
        if each.startswith(folders) or not affected.isdisjoint(tree.needs(each))
    ]
    return chosen, f"{len(chosen)} of {len(tree.tests)} test files, which need {_shown(changed)}"


def _shown(paths: list[str]) -> str:
    more = f" and {len(paths) - PATHS_SHOWN_MAX} more" if len(paths) > PATHS_SHOWN_MAX else ""
    return f"{', '.join(paths[:PATHS_SHOWN_MAX])}{more}" if paths else "nothing: no file changed"


def changed_since(root: Path, ref: str) -> list[str]:
    """Return the paths that differ from where this branch left `ref`, uncommitted and new ones too."""
    base = _git(root, "merge-base", ref, "HEAD").strip()
    differing = _git(root, "diff", "--name-only", "--no-renames", "-z", base)
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return [path for path in f"{differing}{new}".split("\0") if path]


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments],
        capture_output=True,
        text=True,
        timeout=GIT_S_MAX,
        check=False,
    )
    if done.returncode:
        why = done.stderr.strip() or "no common commit"
        raise SystemExit(
            f"./run test: `git {' '.join(arguments)}` failed: {why}. "
            "Name a branch or a commit that this checkout has: --changed=REF."
        )
    return done.stdout


def module_of(path: str) -> str:
    """Return the dotted name that a path has as a module."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _parents(name: str) -> Iterator[str]:
    while name := name.rpartition(".")[0]:
        yield name


def _names_and_words(tree: ast.AST) -> tuple[frozenset[str], frozenset[str]]:
    names, words, open_ = set[str](), set[str](), [tree]
    while open_:
        match node := open_.pop():
            case ast.Expr(value=ast.Constant()):  # a docstring
                continue
            case ast.Name(id=name) | ast.arg(arg=name):
                names.add(name)
            case ast.Constant(value=str(word)):
                words.add(word)
        open_ += ast.iter_child_nodes(node)
    return frozenset(names), frozenset(words)


def _bound_by(node: ast.AST) -> dict[str, set[str]]:
    """Return each name that a statement imports, with the modules that this may be."""
    match node:
        case ast.Import(names=aliases):
            return {alias.asname or alias.name: {alias.name} for alias in aliases}
        case ast.ImportFrom(module=str(module), names=aliases):
            return {a.asname or a.name: {module, f"{module}.{a.name}"} for a in aliases}
    return {}


def _functions(conftest: ast.Module) -> dict[str, Part]:
    """Return what each function of a conftest needs; of its file's imports, those that it uses."""
    bound = {name: each for node in conftest.body for name, each in _bound_by(node).items()}
    found = {}
    for node in (each for each in conftest.body if isinstance(each, ast.FunctionDef)):
        names, words = _names_and_words(node)
        own = [each for inner in ast.walk(node) for each in _bound_by(inner).values()]
        used = own + [bound[name] for name in names & bound.keys()]
        found[node.name] = Part(frozenset().union(*used), names, words)
    return found


if __name__ == "__main__":
    gc.disable()  # a thousand syntax trees stay to the end: looking through them doubles the time
    [ref] = sys.argv[1:]
    files, why = select(Tree(Path.cwd()), changed_since(Path.cwd(), ref))
    print(f"./run test: since {ref}: {why}", file=sys.stderr)
    print("\n".join(files))
