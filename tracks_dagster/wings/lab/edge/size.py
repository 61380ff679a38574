"""`tracks size`: what memory a step takes, and the largest micro-batch that fits a device."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click

from tracks_dagster.attempts.effects.local.project_code import (
    project_folder,
    read_project_code,
    read_script_code,
)
from tracks_dagster.attempts.effects.preparing import prepare
from tracks_dagster.attempts.effects.runs import plan_run
from tracks_dagster.attempts.effects.supervise import rank_command
from tracks_dagster.attempts.sizing import (
    ASSUMED,
    Overhead,
    SizeRequest,
    StepMemory,
    device_memory,
    format_bytes,
    largest_fitting,
    micro_batches,
    next_micro_batch,
    overhead_of,
)
from tracks_dagster.cli.common import (
    as_json,
    parse_settings,
    print_json,
    print_table,
    text_width,
)
from tracks_dagster.projects.effects.registered import DEFAULT_PROJECT
from tracks_dagster.reading import open_ledger_to_read, open_tracks_to_read
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.settings import Settings, person
from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.bodies import MemoryPeak, Program, RunDeclared
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput, LedgerError, ObjectLost
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import (
    ACCUMULATION,
    GLOBAL_BATCH,
    LOADER_WORKERS,
    LR,
    MICRO_BATCH,
    SEED,
    STEPS,
    key_of,
    roles_of,
    value_of,
)
from tracks_dagster.track.states.run_state import program_of, trainer_of
from tracks_dagster.track.text.redact import redact
from tracks_dagster.training.projects.sizer import size_steps

PASSES = 2  # of a step that has more: from the second on, its gradients are there too
FREE_OF_MEMORY = (STEPS, SEED, LR, LOADER_WORKERS, GLOBAL_BATCH, ACCUMULATION)
ATTEMPTS_READ_MAX = 50  # newest, to find one that measured
SIZINGS_MAX = 12  # processes that are started, for all devices together


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is sized: code, how it is started, and the declaration with the config."""

    declared: RunDeclared
    program: Program | None
    code: bytes
    code_key: str

    def at(self, micro_batch: int | None) -> RunDeclared:
        """Return the declaration with a micro-batch, of one rank and as many passes as it takes."""
        config, roles = dict(self.declared.config), self.declared.roles
        keys = {role: key_of(config, roles, role) for role in (MICRO_BATCH, GLOBAL_BATCH)}
        if micro_batch is not None:
            passes = min(PASSES, self.share // micro_batch)
            accumulation = key_of(config, roles, ACCUMULATION) or ACCUMULATION
            sizes = {MICRO_BATCH: micro_batch, GLOBAL_BATCH: micro_batch * passes}
            config |= {key: sizes[role] for role, key in keys.items() if key is not None}
            config[accumulation] = passes
        return replace(self.declared, config=config, drills=())

    def memory_config(self, config: Mapping[str, Json]) -> dict[str, Json]:
        """Return of a config what the memory of a step may depend on."""
        roles = roles_of(self.declared.roles, config)
        left_out = {roles.get(role) for role in FREE_OF_MEMORY}
        return {key: value for key, value in config.items() if key not in left_out}

    @property
    def micro_batch(self) -> int | None:
        """The config's own; None where no two keys have these roles."""
        found = value_of(self.declared.config, self.declared.roles, MICRO_BATCH)
        return found if type(found) is int and self.share else None

    @property
    def share(self) -> int:
        """Samples of one step of one rank; 0 where the config does not say."""
        total = value_of(self.declared.config, self.declared.roles, GLOBAL_BATCH)
        return total // self.declared.compute.ranks if type(total) is int else 0


@click.command("size")
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option(
    "--project",
    "folder",
    type=click.Path(path_type=Path),
    show_default=f"the one you are in, else examples/{DEFAULT_PROJECT}",
    help="Folder of the project, with its tracks.yaml.",
)
@click.option("--trainer", type=click.Path(path_type=Path), help="One script of your own, alone.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change the config.")
@click.option("--ranks", type=int, help="Divide the global batch among so many.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="H100|24GiB",
    help="Find the largest micro-batch that fits it.",
)
@click.option("--measure", is_flag=True, help="Run the two steps for real, on this machine.")
@as_json
def size_command(
    run_id: str | None,
    folder: Path | None,
    trainer: Path | None,
    settings: tuple[str, ...],
    ranks: int | None,
    devices: tuple[str, ...],
    measure: bool,
    as_json: bool,
) -> None:
    """Predict the peak memory of a step: of a project, or of a stored RUN.

    The script is started as a rank is, with tensors that have a shape and no data, runs two steps and
    is ended: no device is needed, and nothing is recorded. With --measure the steps are real.
    """
    given = Settings.from_environment()
    wanted = [device_memory(text) for text in devices]
    if run_id is not None:
        if folder or trainer or settings or ranks:
            raise InvalidInput(
                "RUN is sized as it was stored; leave --project, --trainer, --set and --ranks out."
            )
        subject = _of_run(given, run_id)
    else:
        subject = _of_code(given, folder, trainer, settings, ranks)
    truth = _truth(given, subject, run_id)
    found = _Sizes(given, subject, measures=measure)
    own = found.at(subject.micro_batch)
    overhead = overhead_of(*truth) if truth is not None else ASSUMED
    fits = [_fit(found, subject, overhead, name, memory) for name, memory in wanted]
    answer = {
        "project": subject.declared.model_family,
        "run_id": run_id,
        "micro_batch": subject.micro_batch,
        "ranks": subject.declared.compute.ranks,
        "measured" if measure else "predicted": to_json(own),
        "run_measured": None if truth is None else {"attempt": truth[0], **to_json(truth[1])},
        "overhead": to_json(overhead),
        "devices": fits,
    }
    if as_json:
        print_json(answer)
        return
    for line in _words(subject, own, measured=measure):
        click.echo(textwrap.fill(line, text_width(), drop_whitespace=bool(line[:1].strip())))
    if truth is not None:
        click.echo(textwrap.fill(_in_words(*truth), text_width()))
    if fits:
        click.echo()
        _print_fits(subject, overhead, fits)


def _of_code(
    given: Settings,
    folder: Path | None,
    trainer: Path | None,
    settings: tuple[str, ...],
    ranks: int | None,
) -> Subject:
    """Return the project of a folder, or a script, as `tracks run` would declare it."""
    if folder is not None and trainer is not None:
        raise InvalidInput("--project and --trainer each name what to size; give one of them.")
    clean = partial(redact, secrets=given.secrets)
    if trainer is not None:
        found = read_script_code(trainer, clean=clean)
    else:
        home = project_folder(folder) or given.examples / DEFAULT_PROJECT
        found = read_project_code(home, store_url=given.store_url, clean=clean)
    prepared = prepare(
        {} if ranks is None else {"ranks": ranks},
        parse_settings(settings),
        found,
        family=found.project.name,
        origin=None,
        policy=DEFAULT_POLICY,
        otherwise={"run_id": "size", "intent": "Its memory is sized.", "owner": person()},
    )
    declared = plan_run(open_tracks_to_read(given), prepared)
    return Subject(
        declared=declared,
        program=declared.program,
        code=found.archive,
        code_key=declared.trainer,
    )


def _of_run(given: Settings, run_id: str) -> Subject:
    """Return what the newest attempt of a run ran; raises UnknownRun or InvalidInput."""
    tracks = open_tracks_to_read(given)
    state = tracks.run(run_id)
    attempt = state.last_attempt
    if attempt is None:
        raise InvalidInput(f"{run_id} has no attempt yet, so nothing that could be sized.")
    key = trainer_of(state, attempt)
    try:
        code = read_addressed(tracks.store, key)
    except ObjectLost as error:
        raise InvalidInput(f"{run_id} cannot be sized: its code {error}.") from error
    opened = attempt.opened
    return Subject(
        declared=replace(
            state.declared, config=opened.config, compute=opened.compute, snapshot=opened.snapshot
        ),
        program=program_of(state, attempt),
        code=code,
        code_key=key,
    )


class _Sizes:
    """Sizes by micro-batch, each found once."""

    def __init__(self, given: Settings, subject: Subject, *, measures: bool) -> None:
        if subject.program is not None and subject.program.by_files:
            raise InvalidInput(
                f"{subject.declared.model_family} joins by files and exit codes (kind: folder), so "
                "nothing in it can be asked to end after two steps; it cannot be sized."
            )
        self._given = given
        self._subject = subject
        self._measures = measures
        self._found: dict[int | None, StepMemory] = {}

    def at(self, micro_batch: int | None) -> StepMemory:
        """Return the memory of a step with that micro-batch; None: of the config as it is."""
        if micro_batch not in self._found:
            declared = self._subject.at(micro_batch)
            request = SizeRequest(
                declared=to_json(declared),
                store_url=self._given.store_url,
                measures=self._measures,
            )
            self._found[micro_batch] = size_steps(
                request,
                command=rank_command(self._subject.program, declared.config),
                code=self._subject.code,
                code_key=self._subject.code_key,
                cache=self._given.home / "cache",
                clean=partial(redact, secrets=self._given.secrets),
            )
        return self._found[micro_batch]

    def needed(self, overhead: Overhead) -> dict[int, int]:
        """Return the memory of a device that each micro-batch takes that was sized."""
        found = self._found.items()
        return {m: overhead.needed(each.peak_bytes) for m, each in found if m is not None}

    @property
    def is_spent(self) -> bool:
        """Whether no more processes are to be started."""
        return len(self._found) >= SIZINGS_MAX


def _truth(given: Settings, subject: Subject, run_id: str | None) -> tuple[str, MemoryPeak] | None:
    """Return the newest attempt that trained this with this config and measured, and what it took.

    run_id: of that run; None: of any. Keys that no memory depends on may differ.
    """
    try:
        rows = open_ledger_to_read(given).query(
            "select run_id, attempt_id, config_json, device_memory_bytes as device_bytes, "
            "reserved_memory_bytes as reserved_bytes, host_memory_bytes as host_bytes, "
            "host_base_bytes from training_attempts where model_family = :name and "
            "host_memory_bytes is not null and (:run_id is null or run_id = :run_id) "
            f"order by ended_at desc limit {ATTEMPTS_READ_MAX}",
            {"name": subject.declared.model_family, "run_id": run_id},
        )
    except LedgerError:  # a home that nothing was projected in yet
        return None
    wanted = subject.memory_config(subject.declared.config)
    for row in rows:
        if subject.memory_config(parse_json(row["config_json"])) == wanted:
            figures = {name: row[name] for name in to_json(MemoryPeak()) if name in row}
            return attempt_key(row["run_id"], row["attempt_id"]), MemoryPeak(**figures)
    return None


def _in_words(attempt: str, memory: MemoryPeak) -> str:
    if memory.device_bytes is not None and memory.reserved_bytes is not None:
        return (
            f"{attempt} measured: {format_bytes(memory.device_bytes)} in use on its GPU at most, "
            f"{format_bytes(memory.reserved_bytes)} held by torch's allocator."
        )
    host, base = memory.host_bytes or 0, memory.host_base_bytes or 0
    return (
        f"{attempt} measured: its process had {format_bytes(host)} of the machine's memory at most, "
        f"{format_bytes(base)} of that (Python and its libraries) before anything was built."
    )


def _fit(
    sizes: _Sizes, subject: Subject, overhead: Overhead, name: str, memory_bytes: int
) -> dict[str, Json]:
    """Return the largest micro-batch that fits, and what it takes."""
    if subject.micro_batch is None:
        raise InvalidInput(
            "--device looks for the largest micro-batch, and no keys of the config have the roles "
            f"{MICRO_BATCH} and {GLOBAL_BATCH}: name them in tracks.yaml, keys: {{{MICRO_BATCH}: KEY}}."
        )
    candidates = micro_batches(subject.share)
    while not sizes.is_spent:
        following = next_micro_batch(sizes.needed(overhead), candidates, memory_bytes)
        if following is None:
            break
        sizes.at(following)
    needed = sizes.needed(overhead)
    best = largest_fitting(needed, memory_bytes)
    return {
        "device": name,
        "memory_bytes": memory_bytes,
        "micro_batch": best,
        "needed_bytes": needed[best if best is not None else min(needed)],
        "is_largest": next_micro_batch(needed, candidates, memory_bytes) is None,
    }


def _words(subject: Subject, own: StepMemory, *, measured: bool) -> Iterator[str]:
    """Yield what one step takes, in lines."""
    declared = subject.declared
    size = "" if subject.micro_batch is None else f", micro_batch {subject.micro_batch}"
    count = "" if own.parameters is None else f" ({own.parameters:_} parameters)".replace("_", " ")
    yield f"{declared.model_family}{count}{size}: memory of one step on one rank"
    yield ""
    for kind, size_bytes in own.by_kind.items():
        yield f"  {kind:<12}{format_bytes(size_bytes):>10}"
    yield f"  {'at its peak':<12}{format_bytes(own.peak_bytes):>10}"
    yield ""
    if measured:
        yield (
            f"Measured: {own.steps} real steps on {own.device} (torch {own.torch}), by the count of "
            + ("CUDA's allocator." if own.device == "cuda" else "torch's own CPU allocator.")
        )
    else:
        yield (
            f"Predicted by torch {own.torch} on tensors without data ({own.device}): what lives at the "
            "peak of the second step."
        )
    if declared.compute.ranks > 1:
        yield (
            f"One of the gang's {declared.compute.ranks} ranks, as if alone: DistributedDataParallel "
            "keeps one more copy of the gradients, and sharding keeps less of everything."
        )


def _print_fits(subject: Subject, overhead: Overhead, fits: list[Json]) -> None:
    rows = []
    for fit in fits:
        best = fit["micro_batch"]
        words = "none fits" if best is None else str(best)
        if best == subject.share:
            words += ", the whole share of a rank"
        elif not fit["is_largest"]:
            words += " or more"
        needed = format_bytes(fit["needed_bytes"])
        rows.append((fit["device"], format_bytes(fit["memory_bytes"]), words, needed))
    print_table(
        ("device", "memory", "largest micro_batch", "takes"), rows, right={"memory", "takes"}
    )
    click.echo(textwrap.fill(f"Beside the tensors of a GPU: {overhead.source}.", text_width()))
