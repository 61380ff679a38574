"""A workload of a person's own: what a file may say, and how it is refused."""

from __future__ import annotations

import pytest

from tracks_dagster.scheduling.policy import Allowance, SchedulingPolicy
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.wings.lab.simulation.workload_file import read_workload
from tracks_dagster.wings.lab.simulation.workloads import Submission, Workload, cluster

POLICY = SchedulingPolicy()
HEAD = "name,at,devices,runs\n"


def read(text: str, policy: SchedulingPolicy = POLICY) -> Workload:
    """Read it for eight devices."""
    return read_workload(text, source="queue.csv", devices=cluster(8, 1), policy=policy)


def test_a_file_has_a_line_a_submission_in_any_order() -> None:
    found = read(
        "\ufeffname, at ,devices,runs,class,team,owner,task,estimate,saves_every,near\r\n"
        "# what the night brings\r\n"
        "\r\n"
        "eval,2h,0.25,5min,eval,language,ann,heldout,,,base n3\r\n"
        '"base, again",1.5h,6,4h,,,,,5h,30min,\r\n'
    )
    assert found.submissions == (
        Submission(
            name="base, again",
            at_s=0.0,  # the first one begins the play
            devices=6,
            work_s=14_400.0,
            workload_class="single",
            estimate_s=18_000.0,
            saves_every_s=1800.0,
        ),
        Submission(
            name="eval",
            at_s=1800.0,
            devices=1,
            memory_share=0.25,
            work_s=300.0,
            workload_class="eval",
            team="language",
            owner="ann",
            task="heldout",
            near=("base", "n3"),
        ),
    )
    assert found.origin == "2 submissions of queue.csv"


def test_times_may_be_dates() -> None:
    found = read(HEAD + "a,2026-11-01T02:00,1,1h\nb,2026-11-01T03:30+01:00,1,1h\n")
    assert [each.at_s for each in found.submissions] == [0.0, 1800.0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no submission"),
        (HEAD, "has no submission. Write for example"),
        (
            "name,at,device,runs\na,0s,1,1h\n",
            "line 1: 'device' is not a column; did you mean devices?",
        ),
        ("name,at,devices\n", "line 1: the column 'runs' is missing"),
        ("name,at,at,devices,runs\n", "line 1: the column 'at' is there twice"),
        (HEAD + "a,0s,1\n", "line 2: it has 3 cells; the first line names 4"),
        (HEAD + "a;0s;1;1h\n", "line 2: it has 1 cells"),
        (HEAD + ",0s,1,1h\n", "line 2: name: it is empty"),
        (HEAD + "a,0s,1,1h\na,0s,1,1h\n", "line 3: name: 'a' is the name of line 2 too"),
        (HEAD + "a,0,1,1h\n", "line 2: at: '0' has no unit"),
        (HEAD + "a,-5min,1,1h\n", "line 2: at: '-5min' is not a duration"),
        (HEAD + "a,0s,1,1h\nb,2026-11-01,1,1h\n", "line 3: at: '2026-11-01': times are all"),
        (HEAD + "a,2026-13-01,1,1h\n", "line 2: at: '2026-13-01' is not a time"),
        (HEAD + "a,0s,1.5,1h\n", "line 2: devices: '1.5' is neither 1, 2, 3, …"),
        (HEAD + "a,0s,0,1h\n", "line 2: devices: '0' is neither"),
        (HEAD + "a,0s,nan,1h\n", "line 2: devices: 'nan' is neither"),
        (HEAD + "a,0s,inf,1h\n", "line 2: devices: 'inf' is neither"),
        (HEAD + "a,0s,-1,1h\n", "line 2: devices: '-1' is neither"),
        (HEAD + "a,0s,9,1h\n", "line 2: devices: 9, and there are 8: it could never start"),
        (HEAD + "a,0s,1,0s\n", "line 2: runs: '0s' is not a time at all"),
        (HEAD + "a,0s,1,\n", "line 2: runs: '' is not a duration"),
        (
            HEAD.strip() + ",class\na,0s,1,1h,evil\n",
            "line 2: class: 'evil' is not a workload class",
        ),
        (HEAD + 'a,0s,1,"1h\n', "it is not CSV: unexpected end of data"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_its_value_and_what_is_valid(
    text: str, words: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(text)
    assert words.lower() in str(caught.value).lower()
    assert "queue.csv" in str(caught.value)


def test_all_that_is_wrong_is_named_at_once_and_not_endlessly() -> None:
    with pytest.raises(InvalidInput) as caught:
        read(HEAD + "".join(f"a{n},0s,99,soon\n" for n in range(2, 9)))
    lines = str(caught.value).splitlines()
    assert lines[0] == "queue.csv has 14 errors:"
    assert lines[1].startswith("  line 2: devices: 99")
    assert lines[2].startswith("  line 2: runs: 'soon'")
    assert lines[-1] == "  and 4 more"


def test_a_team_that_the_policy_does_not_name_is_refused() -> None:
    policy = SchedulingPolicy(teams={"vision": Allowance()})
    with pytest.raises(InvalidInput, match="speech"):
        read(HEAD.strip() + ",team\na,0s,1,1h,speech\n", policy)
