"""Lines of sacct, real ones and spoilt ones."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.wings.history.worlds import COLUMNS, HEADER, import_world, row
from tracks_dagster.reasons.slurm_rows import hosts
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.wings.history.judging import run_id_of
from tracks_dagster.wings.history.slurm import Sacct
from tracks_dagster.wings.history.source import BadRow, NotEnded, Read, SourceAttempt

GOLDEN = Path(__file__).parent / "golden"


def read(lines: list[str], **how: object) -> list[Read]:
    """Return what is read of lines."""
    return list(Sacct(**{"zone": UTC, **how}).read(lines))  # type: ignore[arg-type]


def only(line: str, header: str = HEADER, **how: object) -> SourceAttempt:
    """Return the only attempt."""
    (found,) = read([header, line], **how)
    assert isinstance(found, SourceAttempt), found
    return found


def test_a_real_sacct_is_read_and_judged(tmp_path: Path) -> None:
    world = import_world(tmp_path)
    done = world.add_file(GOLDEN / "slurm-22.05.sacct")
    assert (done.bad, done.not_ended) == ([], 1)
    names = {
        r["run_id"]: r["model_family"] for r in world.ledger.query("select * from training_runs")
    }
    found = {names[run_id]: reasons for run_id, reasons in world.runs().items()}
    assert found == {
        "done": ["completed"],
        "code-error": ["unknown"],
        "segfault": ["unknown"],
        "array": ["completed"],
        "too-long": ["walltime_timeout"],
        "cancelled": ["user_cancelled"],
        "12.52a": ["preempted", "completed"],
        "urgent": ["completed"],
        "ends-on-sigterm": ["unknown"],
        "urgent-too": ["completed"],
        "requeued": ["unknown", "completed"],
        "node-fail": ["node_failure"],
    }


def test_times_of_another_zone_are_the_same_times() -> None:
    lines = {
        zone: (GOLDEN / f"slurm-22.05{zone}.sacct").read_text(encoding="utf-8").splitlines()
        for zone in ("", "-new-york")
    }
    there = read(lines["-new-york"], zone=ZoneInfo("America/New_York"))
    assert [_times(each) for each in there] == [_times(each) for each in read(lines[""])]


def _times(each: Read) -> object:
    if isinstance(each, SourceAttempt):
        return (each.id, each.submitted_at, each.started_at, each.ended_at)
    return each


@pytest.mark.parametrize(
    ("spoilt", "why"),
    [
        (row(2)[:60], "columns: it is cut"),
        (row(2, JobName="a|b"), "a name holds '|'"),
        (row(2, Start="Thu 01 Jan"), "its Start is 'Thu 01 Jan'"),
        (row(2, End="2025-12-31T00:00:00"), "it ends (2025-12-31T00:00:00) before it starts"),
        (row(2, NodeList="n[1-"), "is cut"),
        (row(2, Submit="0001-01-01T00:00:00"), "its Submit"),
        (row(2, JobIDRaw=""), "no job id"),
        (row(2, Start="1899-01-01T00:00:00"), "its Start"),
    ],
)
def test_a_spoilt_line_is_named_and_loses_nothing_else(spoilt: str, why: str) -> None:
    found = read([HEADER, row(1), spoilt, row(3)])
    bad = [each for each in found if isinstance(each, BadRow | NotEnded)]
    assert [each.line for each in bad] == [3]
    assert why in (bad[0].why if isinstance(bad[0], BadRow) else "")
    assert [each.run for each in found if isinstance(each, SourceAttempt)] == ["1", "3"]


def test_a_file_without_the_columns_names_those_that_it_lacks() -> None:
    with pytest.raises(InvalidInput, match="no column State, Submit"):
        read(["JobID|JobName|Start|End", "1|x|2026-01-01T00:00:00|2026-01-01T01:00:00"])
    with pytest.raises(InvalidInput, match="no line"):
        read([])


def test_files_in_a_row_are_read_each_by_its_own_header() -> None:
    """`cat a b c`: the header once more, one in another order, one of another separator and fewer."""
    turned = list(reversed(COLUMNS))
    as_turned = "|".join(
        dict(zip(COLUMNS, row(3, hour=2).split("|"), strict=True))[c] for c in turned
    )
    few = "\ufeffJobID;State;Submit;Start;End"
    as_few = "4;COMPLETED;2026-01-01T00:00:00;2026-01-01T00:00:00;2026-01-01T01:00:00"
    lines = [
        HEADER,
        row(1),
        HEADER,
        row(2),
        "|".join(turned),
        as_turned,
        few,
        as_few,
        HEADER,
        row(5),
    ]
    found = read([f"{line}\n" for line in lines])
    assert [each for each in found if not isinstance(each, SourceAttempt)] == []
    assert [each.run for each in found if isinstance(each, SourceAttempt)] == [*"12345"]
    assert {each.owner for each in found if isinstance(each, SourceAttempt)} == {"alice", ""}


def test_rows_below_a_header_without_a_needed_column_are_named() -> None:
    lines = [HEADER, row(1), HEADER.replace("|State|", "|Stat|"), row(2), HEADER, row(3)]
    found = read(lines)
    assert [each.run for each in found if isinstance(each, SourceAttempt)] == ["1", "3"]
    bad = [each for each in found if isinstance(each, BadRow)]
    assert [(each.line, each.why) for each in bad] == [
        (3, "it is a header without column State"),
        (4, "it is below line 3, a header without column State"),
    ]


def test_a_job_that_is_called_as_a_column_is_a_job() -> None:
    assert [type(each) for each in read([HEADER, row(1, JobName="JobID")])] == [SourceAttempt]


@pytest.mark.parametrize(
    ("renamed", "devices"),
    [({}, 16), ({"AllocTRES": "AllocGRES", "NNodes": "AllocNodes", "JobIDRaw": "JobID2"}, 16)],
)
def test_the_columns_of_other_versions_are_found(renamed: dict[str, str], devices: int) -> None:
    header = "|".join(renamed.get(each, each) for each in COLUMNS)
    found = only(row(5), header)
    assert (found.run, found.devices) == ("5", devices)


def test_columns_that_are_missing_are_unknown_and_not_guessed() -> None:
    found = only(
        "5|FAILED|2026-01-01T00:00:00|2026-01-01T00:00:00|2026-01-01T01:00:00",
        "JobID|State|Submit|Start|End",
    )
    assert (found.devices, found.device_class, found.nodes, found.owner) == (1, "cpu", (), "")


@pytest.mark.parametrize(
    ("tres", "expected"),
    [
        ("billing=4,cpu=4,gres/gpu=4,node=2", (4, "gpu")),
        ("cpu=4,gres/gpu:h100=8,gres/gpu=8,node=1", (8, "h100")),
        ("gpu:v100:4", (4, "v100")),
        ("cpu=32,mem=1G,node=2", (2, "cpu")),
        ("", (2, "cpu")),
    ],
)
def test_devices_are_those_that_were_allocated(tres: str, expected: tuple[int, str]) -> None:
    found = only(row(1, AllocTRES=tres))
    assert (found.devices, found.device_class) == expected


def test_steps_belong_to_the_job_before_them() -> None:
    step = row(1, State="OUT_OF_MEMORY").replace("1|1|", "1.0|1.0|", 1)
    (found,) = read([HEADER, row(1, State="FAILED", ExitCode="1:0"), step])
    assert isinstance(found, SourceAttempt)
    assert found.evidence.ranks[0].oom_killed


def test_what_a_submission_excluded_is_known() -> None:
    assert only(row(1, SubmitLine="sbatch --exclude=n[1,39] x.sh")).excluded_nodes == ("n1", "n39")
    assert only(row(1, SubmitLine="sbatch -x n7 x.sh")).excluded_nodes == ("n7",)


@pytest.mark.parametrize(
    ("line", "nodes"),
    [
        ("sbatch -p gpu --hold -x n7 run.sh -x n8", ("n7",)),
        ("sbatch --exclude n7 -xn8 run.sh", ("n8",)),
        ("sbatch --requeue run.sh -x data[a-b].csv", ()),
        ("sbatch --wrap='bash -x run.sh' -x n7", ("n7",)),
        ("sbatch --wrap=bash -x run.sh", ()),
        ("sbatch --exclude=[heads run.sh", ()),
        ("sbatch -x 'n7 run.sh", ("n7",)),
        ("sbatch", ()),
    ],
)
def test_only_options_before_the_script_exclude_nodes(line: str, nodes: tuple[str, ...]) -> None:
    assert only(row(1, SubmitLine=line)).excluded_nodes == nodes


def test_jobs_of_one_name_are_one_run_where_asked_and_not_side_by_side() -> None:
    lines = [HEADER, row(1, hour=0), row(2, hour=2), row(3, hour=2.5)]
    found = [each for each in read(lines, by_name=True) if isinstance(each, SourceAttempt)]
    assert [(each.run, each.cause) for each in found] == [
        ("train/alice", "manual_retry"),
        ("train/alice", "manual_retry"),
        ("3", "retry"),
    ]


def test_jobs_of_one_name_but_of_another_person_or_folder_are_other_runs() -> None:
    lines = [
        HEADER,
        row(1, hour=0, WorkDir="/gpt"),
        row(2, hour=2, WorkDir="/vit"),
        row(3, hour=4, WorkDir="/gpt", User="bob"),
        row(4, hour=6, WorkDir="/gpt"),
    ]
    found = [each for each in read(lines, by_name=True) if isinstance(each, SourceAttempt)]
    assert len({run_id_of("slurm", each.run, str) for each in found}) == 3
    assert found[0].run == found[3].run
    assert {each.title for each in found} == {"train"}


def test_the_hour_that_comes_twice_is_decided_by_what_had_elapsed() -> None:
    zone = ZoneInfo("Europe/Paris")
    line = row(
        1,
        Submit="2026-10-25T02:40:00",
        Start="2026-10-25T02:50:00",
        End="2026-10-25T02:10:00",
        ElapsedRaw="1200",
    )
    found = only(line, zone=zone)
    assert found.ended_at == datetime(2026, 10, 25, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("start", "end", "elapsed_s", "started_at"),
    [
        ("02:30", "03:30", 3600, "01:30"),  # the second 02:30
        ("02:30", "03:30", 7200, "00:30"),  # the first one
        ("00:30", "02:30", 10800, "22:30"),  # ends in the second one, one day before in UTC
        ("02:10", "02:50", 2400, "00:10"),
        ("02:30", "03:30", 600, "00:30"),  # it was suspended for a while: no time fits
    ],
)
def test_what_had_elapsed_tells_which_of_two_hours_a_time_is_of(
    start: str, end: str, elapsed_s: int, started_at: str
) -> None:
    day = "2026-10-25T"
    line = row(
        1,
        Submit=f"{day}00:00:00",
        Start=f"{day}{start}:00",
        End=f"{day}{end}:00",
        ElapsedRaw=str(elapsed_s),
    )
    found = only(line, zone=ZoneInfo("Europe/Paris"))
    assert found.started_at is not None
    assert f"{found.started_at:%H:%M}" == started_at
    ran_s = (found.ended_at - found.started_at).total_seconds()
    assert ran_s == (elapsed_s if elapsed_s > 600 else 7200)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1", ("n1",)),
        ("node-[1,39]", ("node-1", "node-39")),
        ("gpu[008-010],cpu3", ("gpu008", "gpu009", "gpu010", "cpu3")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("", ()),
    ],
)
def test_lists_of_hosts_are_expanded(text: str, expected: tuple[str, ...]) -> None:
    assert hosts(text) == expected


@pytest.mark.parametrize("text", ["n[1-", "n[a-b]", "n[1-999999]"])
def test_a_list_of_hosts_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="n"):
        hosts(text)
