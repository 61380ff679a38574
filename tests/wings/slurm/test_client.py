"""Slurm's programs as the client calls them: what they are given, and what their words mean."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.wings.slurm.test_submission import SETTINGS, SPEC
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.errors import GangError, GangUnreachable
from tracks_dagster.wings.slurm.edge.findings import nearest, read_facts
from tracks_dagster.wings.slurm.effects.client import WORDS_MAX, SlurmClient, SubmitUnknown
from tracks_dagster.wings.slurm.settings import SlurmSettings
from tracks_dagster.wings.slurm.submission import submission

PLAIN = replace(SPEC, compute=ComputeRequest(launcher="slurm"))
JOB = submission(PLAIN, SETTINGS, token="t", output="/o")
LEAKY = {"TRACKS_HOME": "/h", "AWS_ACCESS_KEY_ID": "AKIA", "SBATCH_ACCOUNT": "x", "HOME": "/root"}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of programs that write down how they were called and print what lies beside them."""
    for name in ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo"):
        path = tmp_path / name
        path.write_text(
            f"#!/bin/sh\ncd {tmp_path}\nprintf '%s\\n' \"$@\" >{name}.words\nenv >{name}.env\n"
            f"cat >{name}.in\ncat {name}.out\ncat {name}.err >&2\nexit $(cat {name}.code)\n"
        )
        path.chmod(0o755)
        answer(tmp_path, name)
    return tmp_path


def answer(folder: Path, name: str, out: str = "", err: str = "", code: int = 0) -> None:
    for suffix, text in (("out", out), ("err", err), ("code", str(code))):
        (folder / f"{name}.{suffix}").write_text(text)


def client(folder: Path, settings: SlurmSettings = SETTINGS, **more: str) -> SlurmClient:
    given: Mapping[str, str] = {**LEAKY, "PATH": f"{folder}:/usr/bin:/bin", **more}
    return SlurmClient(settings, clean=str, environment=given)


def test_a_submit_gives_the_script_by_stdin_and_little_of_this_environment(programs: Path) -> None:
    answer(programs, "sbatch", out="41;cluster\n")
    settings = replace(SETTINGS, pass_environment=("AWS_ACCESS_KEY_ID", "NOT_SET"))
    assert client(programs, settings).submit(JOB) == "41"
    assert (programs / "sbatch.in").read_text() == JOB.script
    assert tuple((programs / "sbatch.words").read_text().splitlines()) == JOB.options
    given = dict(line.split("=", 1) for line in (programs / "sbatch.env").read_text().splitlines())
    assert given.keys() - {"PWD", "SHLVL", "_", "OLDPWD"} == {"HOME", "PATH", "AWS_ACCESS_KEY_ID"}


def test_tables_are_asked_for_in_utc(programs: Path) -> None:
    client(programs).queue()
    client(programs).accounts(["7", "8"])
    for name in ("squeue", "sacct"):
        given = (programs / f"{name}.env").read_text().splitlines()
        assert {"TZ=UTC", "SLURM_TIME_FORMAT=standard"} <= set(given)
    assert "--jobs=7,8" in (programs / "sacct.words").read_text().splitlines()
    assert "--me" in (programs / "squeue.words").read_text().splitlines()


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Batch job submission failed: Socket timed out on send/recv operation", SubmitUnknown),
        ("Unable to contact slurm controller (connect failure)", SubmitUnknown),
        # It was sent, and may have arrived.
        ("Batch job submission failed: Message receive failure", SubmitUnknown),
        ("Batch job submission failed: Unexpected message received", SubmitUnknown),
        ("Batch job submission failed: Communication shutdown failure", SubmitUnknown),
        ("fatal: Could not establish a configuration source", SubmitUnknown),
        # Slurm took none, and will later.
        ("Batch job submission failed: Rate limit exceeded, please retry later", GangUnreachable),
        ("Batch job submission failed: MaxJobCount limit reached", GangUnreachable),
        (
            "Batch job submission failed: I/O error writing script/environment to file",
            GangUnreachable,
        ),
        (
            "Batch job submission failed: Required partition not available (inactive or drain)",
            GangUnreachable,
        ),
        ("Batch job submission failed: Job violates accounting/QOS policy", GangUnreachable),
        ("Batch job submission failed: Requested node configuration is not available", GangError),
        (
            "Batch job submission failed: Invalid account or account/partition combination",
            GangError,
        ),
        ("invalid partition specified: nope", GangError),
        ("lua: please connect your job to a project with --account, and try again", GangError),
        ("lua: job refused, no timeout given; ask for it temporarily by -t", GangError),
        ("Batch job submission failed: Invalid number of sockets per node", GangError),
        ("Connection refused", SubmitUnknown),
        ("Batch job submission failed: Unable to contact slurm controller", SubmitUnknown),
        ("Batch job submission failed: Resource temporarily unavailable", SubmitUnknown),
        ("Batch job submission failed: Transport endpoint is not connected", SubmitUnknown),
        ("If munged is up, restart with --num-threads=10. Munge encode failed", SubmitUnknown),
        ("Unable to connect to database", SubmitUnknown),
    ],
)
def test_what_sbatch_says_tells_whether_there_may_be_a_job(
    programs: Path, words: str, kind: type[GangError]
) -> None:
    answer(programs, "sbatch", err=f"sbatch: error: {words}\n", code=1)
    with pytest.raises(GangError, match=words.split("(")[0]) as error:
        client(programs).submit(JOB)
    assert type(error.value) is kind


REMOVED = "sbatch: error: Batch job submission failed: Invalid node name specified"


def takes_only(folder: Path, *nodes: str) -> None:
    """Slurm knows these nodes, and refuses a job that excludes others, as it does."""
    answer(folder, "sinfo", out="".join(f"{node}\n{node}\n" for node in nodes))
    known = "|".join(nodes)
    (folder / "sbatch").write_text(
        f"#!/bin/sh\ncd {folder}\nprintf '%s\\n' \"$@\" >sbatch.words\n"
        "list=$(sed -n 's/^--exclude=//p' sbatch.words | tr , '\\n')\n"
        f"[ -z \"$(echo $list | tr ' ' '\\n' | grep -vxE '{known}')\" ] && echo 41 && exit\n"
        f"echo '{REMOVED}' >&2; exit 1\n"
    )


@pytest.mark.parametrize(
    ("struck", "left"),
    [(("n1", "gone", "n3"), ["--exclude=n1,n3"]), (("gone",), [])],
    ids=["some", "all"],
)
def test_a_node_that_the_site_has_removed_is_excluded_no_longer(
    programs: Path, struck: tuple[str, ...], left: list[str]
) -> None:
    """Slurm refuses a job that excludes a node that it does not know: each submit from then on."""
    takes_only(programs, "n1", "n2", "n3")
    compute = replace(PLAIN.compute, excluded_nodes=struck)
    job = submission(replace(PLAIN, compute=compute), SETTINGS, token="t", output="/o")
    assert client(programs).submit(job) == "41"
    asked = (programs / "sbatch.words").read_text().splitlines()
    assert [word for word in asked if word.startswith("--exclude")] == left


def test_a_node_that_a_person_named_and_slurm_does_not_know_is_said(programs: Path) -> None:
    takes_only(programs, "n1", "n2")
    settings = replace(SETTINGS, exclude=("n[1,7]", "gone"))
    job = submission(PLAIN, settings, token="t", output="/o")
    with pytest.raises(GangError, match=r"exclude, in slurm.yaml or of the run, names gone, n7"):
        client(programs, settings).submit(job)


def test_a_node_that_a_run_named_has_to_be_known_when_it_begins_and_may_be_gone_later(
    programs: Path,
) -> None:
    takes_only(programs, "n1", "n2")
    compute = replace(PLAIN.compute, slurm={"exclude": "n[1,7]"})
    first, second = (
        submission(
            replace(PLAIN, compute=compute, attempt_id=number), SETTINGS, token="t", output="/o"
        )
        for number in (1, 2)
    )
    with pytest.raises(GangError, match=r"names n7, which Slurm does not know"):
        client(programs).submit(first)
    assert client(programs).submit(second) == "41"
    assert "--exclude=n1" in (programs / "sbatch.words").read_text().splitlines()
    said = second.excluding(
        {"n1", "n2"}
    ).script  # in the job's output, and so at the end of its log
    assert "\necho 'tracks: not excluded, for Slurm does not know them: n7'\n# tracks:" in said


def test_a_node_that_was_asked_for_by_other_options_and_is_not_known_is_refused_once(
    programs: Path,
) -> None:
    answer(programs, "sbatch", err=REMOVED, code=1)
    answer(programs, "sinfo", out="n1\n")
    compute = replace(PLAIN.compute, excluded_nodes=("n1",))
    job = submission(replace(PLAIN, compute=compute), SETTINGS, token="t", output="/o")
    with pytest.raises(GangError, match="Invalid node name"):
        client(programs).submit(job)


def test_a_secret_in_long_words_is_hidden_before_they_are_cut(programs: Path) -> None:
    secret = "hunter2-correct-horse-battery"
    answer(programs, "sbatch", err=f"error: {secret} {'y' * (WORDS_MAX - 10)}", code=1)
    cleaning = client(programs)
    cleaning._clean = lambda text: text.replace(secret, "[hidden]")
    with pytest.raises(GangError) as error:
        cleaning.submit(JOB)
    assert "battery" not in str(error.value)


def test_a_program_that_was_killed_may_have_done_its_work(programs: Path) -> None:
    for name in ("sbatch", "squeue"):
        (programs / name).write_text("#!/bin/sh\nkill -9 $$\n")
    with pytest.raises(SubmitUnknown, match="exit code -9"):
        client(programs).submit(JOB)
    with pytest.raises(GangUnreachable):
        client(programs).queue()


def test_a_controller_that_limits_how_often_it_is_asked_is_asked_later(programs: Path) -> None:
    words = "slurm_load_jobs error: Rate limit exceeded, please retry momentarily"
    answer(programs, "squeue", err=words, code=1)
    with pytest.raises(GangUnreachable, match="Rate limit"):
        client(programs).queue()


def test_a_submit_that_names_no_job_may_have_led_to_one(programs: Path) -> None:
    answer(programs, "sbatch", out="sbatch: queued\n")
    with pytest.raises(SubmitUnknown):
        client(programs).submit(JOB)


def test_a_site_without_accounting_has_no_rows(programs: Path) -> None:
    answer(programs, "sacct", err="Slurm accounting storage is disabled\n", code=1)
    assert client(programs).accounts(["7"]) == ""


def test_a_job_that_is_over_is_ended(programs: Path) -> None:
    answer(
        programs, "scancel", err="scancel: error: Kill job error: Invalid job id specified", code=1
    )
    client(programs).cancel("7")
    answer(programs, "scancel", err="scancel: error: Access/permission denied", code=1)
    with pytest.raises(GangError, match="Access/permission denied"):
        client(programs).cancel("7")


def test_a_program_that_is_not_here_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(GangError, match="name a login node"):
        SlurmClient(SETTINGS, clean=str, environment={"PATH": str(tmp_path)}).queue()


def test_one_that_never_answers_is_given_up(programs: Path) -> None:
    def run(argv: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(argv, how["limit_s"])

    slow = SlurmClient(SETTINGS, clean=str, environment={}, run=run)
    with pytest.raises(SubmitUnknown, match="no answer within 60 s"):
        slow.submit(JOB)
    with pytest.raises(GangUnreachable, match="no answer within 30 s"):
        slow.queue()
    with pytest.raises(GangUnreachable, match="Cannot run sinfo now: no answer within 10 s"):
        slow.ask("sinfo", "-h")  # a person waits


def test_a_checkup_asks_nobody_again_after_one_who_did_not_answer(tmp_path: Path) -> None:
    asked = []

    def run(argv: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        asked.append(argv[0])
        if argv[0] == "sinfo":
            raise subprocess.TimeoutExpired(argv, how["limit_s"])
        return subprocess.CompletedProcess(argv, 0, "x\n", "")

    facts = read_facts(SlurmClient(SETTINGS, clean=str, environment={}, run=run), tmp_path)
    assert asked == ["scontrol", "stat", "id", "scontrol", "sinfo"]
    assert (facts.logs_type, facts.nodes, facts.associations) == ("x", None, None)
    assert facts.problem == "Cannot run sinfo now: no answer within 10 s."


def test_by_ssh_the_words_arrive_as_they_are_and_no_question_is_answered(programs: Path) -> None:
    answer(programs, "sbatch", out="7\n")
    ssh = programs / "ssh"
    ssh.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{programs}/ssh.words\n'
                   'for last; do :; done\nexec sh -c "$last"\n')  # fmt: skip
    ssh.chmod(0o755)
    far = replace(SETTINGS, host="login", logs="/logs")
    assert client(programs, far).submit(JOB) == "7"
    assert tuple((programs / "sbatch.words").read_text().splitlines()) == JOB.options
    assert (programs / "sbatch.in").read_text() == JOB.script
    client(programs, far).queue()
    assert "TZ=UTC" in (programs / "squeue.env").read_text()
    assert "BatchMode=yes" in (programs / "ssh.words").read_text()


def test_what_ssh_leaves_behind_is_not_waited_for(programs: Path) -> None:
    """The process that keeps a connection keeps ssh's stderr too, in versions before 8.5."""
    answer(programs, "squeue", out="7\n", err="a word\n")
    ssh = programs / "ssh"
    ssh.write_text('#!/bin/sh\nsleep 613 &\nfor last; do :; done\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    far = replace(SETTINGS, host="login", logs="/logs")
    found = client(programs, far).queue()
    subprocess.run(["/usr/bin/pkill", "-x", "-f", "sleep 613"], check=True)
    assert found == "7\n"


def test_programs_find_the_ticket_of_who_runs_this_one(programs: Path) -> None:
    client(programs, KRB5CCNAME="FILE:/tmp/krb5cc_1_x").queue()  # for ssh, or for sbatch to pass on
    assert "KRB5CCNAME=FILE:/tmp/krb5cc_1_x" in (programs / "squeue.env").read_text()


@pytest.mark.parametrize(
    ("words", "kind", "cure"),
    [
        (
            "ann@login: Permission denied (publickey,password).",
            GangError,
            "login true` has to work",
        ),
        ("Host key verification failed.", GangError, "accept it"),
        (
            "ssh: Could not resolve hostname login: Name or service not known",
            GangError,
            "slurm.yaml",
        ),
        (
            "ssh: Could not resolve hostname login: Temporary failure in name resolution",
            SubmitUnknown,
            "Temporary failure",
        ),
        ("client_loop: send disconnect: Broken pipe", SubmitUnknown, "Broken pipe"),
        ("Connection closed by 10.0.0.1 port 22", SubmitUnknown, "Connection closed"),
    ],
)
def test_what_ssh_says_tells_whether_to_ask_again(
    programs: Path, words: str, kind: type[GangError], cure: str
) -> None:
    ssh = programs / "ssh"
    ssh.write_text(f"#!/bin/sh\necho '{words}' >&2; exit 255\n")
    ssh.chmod(0o755)
    far = client(programs, replace(SETTINGS, host="login", logs="/l"))
    with pytest.raises(GangError, match=cure) as error:
        far.submit(JOB)
    assert type(error.value) is kind
    with pytest.raises(GangError, match=cure) as error:
        far.queue()
    assert isinstance(error.value, GangUnreachable) == (kind is not GangError)


def test_the_folder_of_logs_may_be_one_that_cannot_be_looked_at(tmp_path: Path) -> None:
    """Of a name that is too long the system says so, as it does of what lies in a closed folder."""
    assert nearest(tmp_path / ("x" * 300) / "logs") == tmp_path
