"""The job of an attempt: what sbatch is given, and the script that each node's part starts in."""

from __future__ import annotations

import subprocess
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tracks_dagster.attempts.ports import GangSpec, RankCommand
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import EXIT_FENCED
from tracks_dagster.wings.slurm.edge.launching import software
from tracks_dagster.wings.slurm.settings import (
    APPTAINER,
    ClassSettings,
    DeviceClass,
    RunOptions,
    SlurmSettings,
)
from tracks_dagster.wings.slurm.submission import Submission, job_name, submission

SETTINGS = SlurmSettings(python="/venv/bin/python")
SPEC = GangSpec(
    run_id="gpt-7",
    attempt_id=2,
    opened_seq=9,
    compute=ComputeRequest(launcher="slurm", ranks=4, ranks_per_node=2, device_class="a100"),
    store_url="/shared/store",
    command=RankCommand(words=("train.py", "--lr", "it's")),
    code_key="codes/abc",
    environment={"TRACKS_DRILL": "x y"},
    workload_class="urgent",
)
FULL = SlurmSettings(
    python="/venv/bin/python",
    partition="gpu",
    account="team-a",
    qos="normal",
    constraint="ib",
    reservation="maintenance",
    exclude=("n7",),
    nice=10,
    time_limit_s=86_401,
    notice_s=180,
    device_classes={"a100": DeviceClass(gres="gpu:a100", constraint="a100&ib")},
    classes={"urgent": ClassSettings(partition="high", qos="urgent", nice=0)},
    modules=("cuda/12.4",),
    prologue=("ulimit -n 65536",),
    environment={"NCCL_DEBUG": "INFO"},
    options=("--switches=1",),
)
GOLDEN = Path(__file__).parent / "golden"


def job(spec: GangSpec = SPEC, settings: SlurmSettings = FULL) -> Submission:
    return submission(spec, settings, token="t1", output="/logs/%j.out")


def test_the_whole_job_is_as_it_was_reviewed() -> None:
    found = job(replace(SPEC, compute=replace(SPEC.compute, cpus=8, memory_bytes=3 * 2**30)))
    golden = (GOLDEN / "gang.sh").read_text()
    assert "\n".join((*(f"# {each}" for each in found.options), found.script)) == golden
    assert (found.nodes, found.ranks_per_node) == (2, 2)


def test_nothing_is_asked_of_slurm_that_nobody_asked_for() -> None:
    plain = replace(SPEC, compute=ComputeRequest(launcher="slurm"), workload_class=None)
    asked = {each.partition("=")[0] for each in job(plain, SETTINGS).options}
    assert asked == {
        *("--job-name", "--comment", "--parsable", "--no-requeue", "--dependency", "--export"),
        *("--chdir", "--open-mode", "--output", "--nodes", "--ntasks-per-node", "--signal"),
    }


@pytest.mark.parametrize(
    ("compute", "option"),
    [
        ({"queue": "debug"}, "--partition=debug"),
        ({"priority_class": "gold"}, "--qos=gold"),
        ({"excluded_nodes": ("n3", "n1")}, "--exclude=n1,n3,n7"),
        ({"memory_bytes": 2**20 + 1}, "--mem=2M"),
        ({"cpus": 7.5}, "--cpus-per-task=8"),
        ({"slurm": {"account": "grant-7"}}, "--account=grant-7"),
        ({"slurm": {"constraint": "h100|a100"}}, "--constraint=h100|a100"),
        ({"slurm": {"reservation": "week_5"}}, "--reservation=week_5"),
        ({"slurm": {"time_limit": "2h"}}, "--time=120"),
        ({"slurm": {"time_limit": "2:00:00"}}, "--time=120"),
        ({"slurm": {"nice": "500"}}, "--nice=500"),
        ({"slurm": {"exclude": "n[1-2]"}}, "--exclude=n7,n[1-2]"),
    ],
)
def test_what_a_run_asks_for_comes_before_the_settings(
    compute: dict[str, object], option: str
) -> None:
    asked = replace(SPEC, compute=replace(SPEC.compute, **compute))  # type: ignore[arg-type]
    assert option in job(asked).options


def test_an_empty_word_of_a_run_leaves_to_slurm_what_the_settings_say() -> None:
    names = sorted(each.name for each in fields(RunOptions))
    asked = replace(SPEC, compute=replace(SPEC.compute, slurm=dict.fromkeys(names, "")))
    found = {each.partition("=")[0] for each in job(asked).options}
    assert found.isdisjoint({"--account", "--constraint", "--reservation", "--nice", "--time"})
    assert "--exclude" in found  # nodes are added to those of the settings, never taken away


def test_a_class_of_the_policy_comes_before_the_settings_for_all() -> None:
    assert {"--partition=high", "--qos=urgent", "--nice=0"} <= set(job().options)
    other = set(job(replace(SPEC, workload_class="standard")).options)
    assert {"--partition=gpu", "--qos=normal", "--nice=10"} <= other


def test_two_homes_of_one_account_never_find_each_others_jobs() -> None:
    names = {job_name(SPEC.ref, url) for url in ("/a", "/b", "s3://a/b")}
    assert len(names) == 3
    assert len(job_name(replace(SPEC, run_id="x" * 40, attempt_id=10**6).ref, "/a")) <= 70


def test_a_site_s_template_has_our_lines_in_their_place() -> None:
    site = "#!/bin/bash\n#SBATCH --mail-type=FAIL\nsource /etc/site\n  {tracks}\necho bye\n"
    script = job(settings=replace(FULL, template=site)).script
    assert script.startswith("#!/bin/bash\n#SBATCH --mail-type=FAIL\nsource /etc/site\n# tracks:")
    assert script.endswith("\necho bye\nexit $tracks_code\n")


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (None, "--container-image=/i.sqsh --container-mounts=/data:/data,/x sh -c"),
        (APPTAINER, "apptainer exec --nv --bind /data:/data,/x /i.sqsh sh -c"),
    ],
)
def test_ranks_run_in_the_image_that_the_settings_name(container: str | None, words: str) -> None:
    settings = replace(
        FULL,
        container=container,
        container_image="/i.sqsh",
        container_mounts=("/data:/data", "/x"),
    )
    assert words in job(settings=settings).script


def test_a_run_s_own_software_comes_before_the_settings() -> None:
    settings = replace(FULL, container_image="/site.sqsh", modules=("site/1",), prologue=("true",))
    own = {
        "container_image": "/own.sqsh",
        "container_mounts": "/data:/data, /x",
        "modules": "cuda/12.4,mpi",
        "prologue": "source /own/env",
    }
    script = job(replace(SPEC, compute=replace(SPEC.compute, slurm=own)), settings).script
    assert "--container-image=/own.sqsh --container-mounts=/data:/data,/x sh -c" in script
    assert "module load cuda/12.4\nmodule load mpi\nsource /own/env\n" in script
    assert "export TRACKS_IMAGE=/own.sqsh\n" in script
    assert "site" not in script
    none = dict.fromkeys(own, "")
    bare = job(replace(SPEC, compute=replace(SPEC.compute, slurm=none)), settings).script
    assert not {"--container-image", "module load", "TRACKS_IMAGE"} & set(bare.split())
    assert "site" not in bare


def test_the_image_is_foreseen_that_the_run_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path))
    (tmp_path / "slurm.yaml").write_text("python: /venv/bin/python\ncontainer_image: /site.sqsh\n")
    settings = Settings.from_environment()
    assert software(settings, SPEC.compute) == {"image": "/site.sqsh"}
    own = replace(SPEC.compute, slurm={"container_image": "/own.sqsh"})
    assert software(settings, own) == {"image": "/own.sqsh"}
    assert software(settings, replace(own, slurm={"container_image": ""})) == {}


def test_a_request_that_slurm_cannot_meet_is_refused_with_all_that_is_wrong() -> None:
    asked = replace(
        SPEC,
        compute=replace(SPEC.compute, device_class="h100", node_selector={"a": "b"}),
    )
    settings = replace(FULL, time_limit_s=120)
    with pytest.raises(InvalidInput) as error:
        job(asked, settings)
    assert "3 errors" in str(error.value)
    assert "'h100' is not a device class; did you mean a100?" in str(error.value)
    assert "node_selector is of Kubernetes" in str(error.value)
    assert "time_limit is 2 min and notice 3 min" in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("acount", "x", "'acount' is not an option of a run's jobs; did you mean account?"),
        ("partition", "gpu", "A run's partition is its queue: --queue."),
        ("qos", "gold", "A run's QOS is its priority class: --priority-class."),
        ("gres", "gpu:1", "--device-class"),
        ("account", "a b", "account of the run's jobs: 'a b' is not a name that Slurm may have"),
        ("time_limit", "24", "'24' has no unit"),
        ("time_limit", "2min", "time_limit is 2 min and notice 3 min"),
        ("nice", "low", "'low' is not a nice value"),
        ("exclude", "n1 n2", "'n1 n2' is not a list of nodes"),
        ("modules", "cuda/12; reboot", "'cuda/12; reboot' is not a module"),
        ("prologue", "a\nb", "one line of the script each"),
        ("container_mounts", "/data:/data", "needs a container_image"),
    ],
)
def test_an_option_of_a_run_that_cannot_be_meant_is_refused(
    name: str, value: str, words: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        job(replace(SPEC, compute=replace(SPEC.compute, slurm={name: value})))
    assert words in str(error.value)


def run_script(
    folder: Path, settings: SlurmSettings = SETTINGS, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a job's script with programs that write down what they are called for; ranks end with 75."""
    programs = {
        "squeue": 'echo "$SLURM_TIME_FORMAT" >>"$LOG"; [ -n "$ENDS" ] && echo "$ENDS"',
        "srun": (
            'echo "srun $*" >>"$LOG"; echo "until ${TRACKS_ENDS_AT:-}" >>"$LOG"; '
            'case "$*" in *" rm -rf "*) exit 1;; esac; exit 75'
        ),
        "scontrol": "seq -f n%05.0f 20000",
        "getent": "exit 0",
        "module": "exit 0",
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    given = {"PATH": f"{folder}:/usr/bin:/bin", "LOG": str(folder / "log"), "ENDS": ""}
    given |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[00001-20000]", **more}
    plain = replace(SPEC, compute=ComputeRequest(launcher="slurm"))
    script = job(plain, settings).script.replace("#!/bin/bash -l", "#!/bin/bash")
    return subprocess.run(
        ["/bin/bash", "-c", script], env=given, check=False, capture_output=True, text=True
    )


@pytest.mark.parametrize("restarts", ["", "0", "1"])
def test_the_script_starts_nothing_where_slurm_started_it_again(
    tmp_path: Path, restarts: str
) -> None:
    done = run_script(tmp_path, **({"SLURM_RESTART_COUNT": restarts} if restarts else {}))
    has_run = (tmp_path / "log").exists()
    assert (done.returncode, has_run) == ((EXIT_FENCED, False) if restarts == "1" else (75, True))


SOON, LATE = "3600", "31536000"  # seconds from now; workers have to collect the same names


@pytest.mark.parametrize("strict", ["", "set -euo pipefail\n"])
@pytest.mark.parametrize(
    ("given", "until"),
    [
        ({"ENDS": SOON}, SOON),
        ({"SLURM_JOB_END_TIME": SOON, "ENDS": "N/A"}, SOON),
        ({"ENDS": LATE}, ""),  # a job without a limit
        ({"ENDS": "N/A"}, ""),
        ({}, ""),  # squeue fails
    ],
)
def test_the_ranks_get_the_time_limit_by_slurm_where_it_says_one(
    tmp_path: Path, given: dict[str, str], until: str, strict: str
) -> None:
    site = f"#!/bin/bash\n{strict}{{tracks}}\n"
    now = int(time.time())
    at = {name: str(now + int(v)) if v.isdigit() else v for name, v in given.items()}
    done = run_script(tmp_path, replace(SETTINGS, template=site), **at)
    assert done.returncode == 75, done.stderr
    lines = (tmp_path / "log").read_text().splitlines()
    assert (lines[0] == "%s") == ("SLURM_JOB_END_TIME" not in given)  # squeue is asked for seconds
    assert {line for line in lines if line.startswith("until")} == {
        f"until {now + int(until) if until else ''}"
    }


@pytest.mark.parametrize("strict", ["", "set -euo pipefail\n"])
def test_a_site_s_own_lines_run_before_and_after_and_the_ranks_code_is_the_job_s(
    tmp_path: Path, strict: str
) -> None:
    site = f'#!/bin/bash\n{strict}echo before\n{{tracks}}\necho "after $TRACKS_MASTER_ADDR"\n'
    done = run_script(tmp_path, replace(SETTINGS, template=site))
    assert (done.stdout, done.returncode) == ("before\nafter n00001\n", 75), done.stderr
    assert "rm -rf /tmp/tracks-7" in (tmp_path / "log").read_text()
