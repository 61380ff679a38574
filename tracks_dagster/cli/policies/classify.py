"""`tracks classify`: say why each case of a file failed, from its evidence alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click
from rich.table import Table

from tracks_dagster.cli import WRONG_USE
from tracks_dagster.cli.common import as_json, print_table
from tracks_dagster.reasons.cases import evidence_of
from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.effects.case_file import ReadCase, read_cases
from tracks_dagster.reasons.evidence import Verdict
from tracks_dagster.reasons.user_rules import UserRules
from tracks_dagster.settings import Settings, read_rules
from tracks_dagster.track.records import Json

LINE_CHARACTERS_SHOWN = 100  # of the first line that decided, in the table


@click.command("classify")
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--rules",
    "rules_file",
    type=click.Path(path_type=Path),
    help="Your own rules, in YAML; TRACKS_RULES is the default.",
)
@as_json
@click.pass_context
def command(
    ctx: click.Context, files: tuple[Path, ...], rules_file: Path | None, as_json: bool
) -> None:
    """Read cases of failures, one JSON object a line, and print why each of them failed.

    A case has an id and its evidence: log_tail, exit_code, signal, pod, events, xid, slurm_state; or a
    pod's recorded history in pod_history. A line that cannot be read is named on stderr, the others
    are classified, and the exit code is 2. With --json one object a case: id, reason, confidence,
    rule, lines.
    """
    settings = Settings.from_environment()
    rules = read_rules(replace(settings, rules_file=rules_file or settings.rules_file))
    table = Table("id", "reason", "confidence", "rule", "what decided")
    is_readable = True
    for path in files:
        for read in read_cases(path):
            if read.case is None:
                is_readable = False
                click.echo(f"tracks: {path}, line {read.line}: {read.problem}", err=True)
                continue
            name, verdict = _classified(path, read, read.case, rules)
            if as_json:
                click.echo(_json_line(name, verdict))
            else:
                _add_row(table, name, verdict, read)
    if not as_json and table.row_count:
        print_table(table)
    ctx.exit(0 if is_readable else WRONG_USE)


def _classified(
    path: Path, read: ReadCase, case: Mapping[str, Json], rules: UserRules
) -> tuple[Json, Verdict]:
    """Return the case's id, null where it has none, and the verdict; a pod's history has a name."""
    is_history = "pod_history" in case and "id" not in case
    name = case.get("case", path.stem) if is_history else case.get("id")
    return name, classify(evidence_of(case), rules)


def _json_line(name: Json, verdict: Verdict) -> str:
    told = {
        "id": name,
        "reason": verdict.reason,
        "confidence": verdict.confidence,
        "rule": verdict.rule,
        "lines": list(verdict.lines),
    }
    return json.dumps(told)  # escaped beyond ASCII: logs hold what no terminal encodes


def _add_row(table: Table, name: Json, verdict: Verdict, read: ReadCase) -> None:
    shown = f"(line {read.line})" if name is None else str(name)
    line = verdict.lines[0][:LINE_CHARACTERS_SHOWN] if verdict.lines else ""
    cells = (shown, verdict.reason, f"{verdict.confidence:.0%}", verdict.rule, line)
    table.add_row(*cells)
