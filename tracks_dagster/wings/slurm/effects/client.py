"""Slurm's own programs, here or by ssh: a call each, bounded; its answer as rows, or an error in words.

Nothing of this process's environment reaches a job but a short list and what the settings name: a job
would keep it for as long as Slurm keeps the job.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence

from tracks_dagster.reasons.slurm_rows import hosts
from tracks_dagster.track.errors import GangError, GangUnreachable
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.wings.slurm.rows import (
    ACCOUNT_FIELDS,
    QUEUE_FORMAT,
    JobRow,
    read_accounts,
    read_queue,
)
from tracks_dagster.wings.slurm.settings import SlurmSettings
from tracks_dagster.wings.slurm.submission import Submission

CALL_S_MAX = 30.0  # of a program that asks
ASK_S_MAX = 10.0  # and where a person waits for a command's answer
END_S_MAX = 15.0  # of one that ends a job, or looks whether it has ended: a tick has 60 s for all
SUBMIT_S_MAX = 60.0  # of sbatch
IDS_MAX = 1000  # of jobs in one question to accounting
SSH_LOST = 255  # its exit code where it did not get through, or was cut off
WORDS_MAX = 500  # of what a program said, in a message
KEPT = (
    *("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "LC_ALL"),
    *("SLURM_CONF", "SSH_AUTH_SOCK", "KRB5CCNAME"),
)
UTC_TIMES = {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
# No question of ssh is ever answered, and one connection serves all calls for ten minutes.
_SSH = (
    *("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ControlMaster=auto"),
    *("-o", "ControlPath=~/.ssh/tracks-%C", "-o", "ControlPersist=600", "--"),
)
# What passes by itself: the controller or its database is away, overloaded, or restarts. What it was
# sent may have arrived. Most are of Slurm's own table of errors (`slurm_errno.c`), in whole sentences:
# a site's own refusals have words such as "connect", "sockets", "try again".
_PASSES = re.compile(
    r"contact slurm controller|timed out|Zero Bytes|Transport endpoint is not connected|"
    r"connect(ion)? failure|Unable to connect|failed to (open persistent )?connect|not connected|"
    r"Connection (refused|reset|closed)|temporarily un(available|able)|Munge|"
    r"Protocol authentication|SlurmDBD|missing socket error|try again later|"
    r"Unable to (register|establish)|in standby|Resource busy|Broken pipe|"
    r"(Message|Communication) (send|receive) failure|shutdown failure|Unexpected message|"
    r"Insane message length|longer than data received|establish a configuration source",
    re.IGNORECASE,
)
# What passes as well, but no job was made: a limit of now, a full disk, a partition that is closed.
_NOT_NOW = re.compile(
    r"accounting/QOS policy|job submit limit|Max\w*Submit|Reached max|maximum number of jobs|"
    r"MaxJobCount|Rate limit exceeded|I/O error writing script|partition not available \(|"
    r"submissions disabled",
    re.IGNORECASE,
)
_NO_NODE = re.compile(r"Invalid node name", re.IGNORECASE)
_NO_ACCOUNTING = re.compile(
    r"accounting storage is disabled|accounting_storage/none", re.IGNORECASE
)

# What ssh says before it has run anything, and what a person can do: it does not pass by itself.
_SSH_REFUSES = {
    "Permission denied (": "`ssh -o BatchMode=yes {host} true` has to work here: a key, an agent or a "
    "ticket answers, since nobody types a password",
    "Host key verification failed": "log in once by `ssh {host}` compare its key, and accept it",
    "Could not resolve hostname": "correct `host` in slurm.yaml, or its entry in ~/.ssh/config",
}
_NO_NAMES_NOW = "Temporary failure in name resolution"  # which passes

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def run_program(
    argv: Sequence[str], *, given: str, limit_s: float, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a program to its own end, whatever it leaves behind: before version 8.5 the process that
    keeps a connection of ssh keeps its stderr too, for whose end a reader of a pipe waits."""
    with (
        tempfile.TemporaryFile("w+", errors="replace") as out,
        tempfile.TemporaryFile("w+", errors="replace") as err,
    ):
        done = subprocess.run(
            argv,
            input=given,
            stdout=out,
            stderr=err,
            text=True,
            timeout=limit_s,
            env=environment,
            check=False,
        )
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(argv, done.returncode, out.read(), err.read())


class SubmitUnknown(GangUnreachable):
    """The reply to a submit was lost: there may be a job."""


class SlurmClient:
    """Every method may raise GangError, GangUnreachable where the same may succeed later."""

    def __init__(
        self,
        settings: SlurmSettings,
        *,
        clean: Redact,
        environment: Mapping[str, str] | None = None,
        run: Run = run_program,
    ) -> None:
        given = os.environ if environment is None else environment
        self._settings, self._clean, self._run = settings, clean, run
        self._own = {name: given[name] for name in KEPT if name in given}
        self._passed = {n: given[n] for n in settings.pass_environment if n in given}

    @property
    def where(self) -> str:
        """What is asked, for people."""
        return "Slurm" if self._settings.host is None else f"Slurm by {self._settings.host}"

    def submit(self, job: Submission) -> str:
        """Return the id of the new job.

        Raises SubmitUnknown where the reply was lost, GangUnreachable where Slurm takes none now,
        GangError where it refuses this one for good.
        """
        doing = f"submit {job.name}"
        done = self._call(doing, ("sbatch", *job.options), given=job.script, limit_s=SUBMIT_S_MAX)
        id_ = done.stdout.strip().splitlines()[-1:] or [""]
        number = id_[0].partition(";")[0]
        if done.returncode == 0 and number.isdecimal():
            return number
        words = self._words(done)
        if _NO_NODE.search(words):
            fewer = self._without_unknown(doing, job)
            if fewer != job:
                return self.submit(fewer)
        if _NOT_NOW.search(words):
            raise GangUnreachable(f"Cannot {doing} now: {words}")
        if done.returncode == 0 or self._passes(done):
            raise SubmitUnknown(f"Cannot {doing} now: {words or 'sbatch named no job'}")
        raise GangError(f"Cannot {doing}: {words}")

    def queue(self, *filters: str, limit_s: float = CALL_S_MAX) -> str:
        """Return what squeue prints of this account's jobs, those that ended lately too."""
        words = ("squeue", "--me", "--states=all", "--noheader", f"--Format={QUEUE_FORMAT}")
        return self._answer("read Slurm's queue", (*words, *filters), limit_s=limit_s)

    def queue_of(self, name: str, *, limit_s: float = CALL_S_MAX) -> list[JobRow]:
        """Return the jobs of one name, asked for now."""
        found = read_queue(self.queue(f"--name={name}", limit_s=limit_s))
        return [row for row in found if row.name == name]

    def job(self, id_: str, *, limit_s: float = CALL_S_MAX) -> JobRow | None:
        """Return the job of that number, asked for now; None where the queue has none."""
        words = (
            "squeue",
            "--states=all",
            "--noheader",
            f"--Format={QUEUE_FORMAT}",
            f"--jobs={id_}",
        )
        done = self._call("read Slurm's queue", words, limit_s=limit_s)
        if done.returncode != 0 and "Invalid job id" in self._words(done):
            return None
        rows = read_queue(self._checked("read Slurm's queue", done))
        return next((row for row in rows if row.id == id_), None)

    def accounts(self, ids: Sequence[str]) -> str:
        """Return what sacct prints of at most IDS_MAX jobs; nothing at a site without accounting."""
        return self._accounts(f"--jobs={','.join(ids[:IDS_MAX])}")

    def accounts_of(self, name: str, since: str) -> list[JobRow]:
        """Return the rows of one name. since: as sacct takes a time, "now-2days"."""
        found = read_accounts(self._accounts(f"--name={name}", f"--starttime={since}"))
        return [row for row in found if row.name == name]

    def signal(self, id_: str) -> None:
        """Send SIGTERM to the tasks of a job that runs; a job that is over is not an error."""
        self._end("drain", id_, "--signal=TERM")

    def cancel(self, id_: str) -> None:
        """End a job, or take it from the queue; a job that is over is not an error."""
        self._end("end", id_)

    def ask(self, *words: str) -> str:
        """Return what a program that only reads prints, for a command; raises as all."""
        doing = f"run {words[0]}"
        return self._checked(doing, self._call(doing, words, limit_s=ASK_S_MAX))

    def user(self, uid: str) -> str:
        """Return the name of a user, or the number where it has none here."""
        if self._settings.host is None and uid.isdecimal():
            try:
                return pwd.getpwuid(int(uid)).pw_name
            except (KeyError, OverflowError):
                return uid
        return uid

    def _without_unknown(self, doing: str, job: Submission) -> Submission:
        """Return the job without the excluded nodes that Slurm does not know; raises GangError where a
        person named one in the settings."""
        known = {*self._answer("read Slurm's nodes", ("sinfo", "-haN", "-o", "%N")).split()}
        try:
            fewer = job.excluding(known) if known else job
            own = sorted({*hosts(",".join(job.left_out))} - known)
        except ValueError as error:
            raise GangError(f"Cannot {doing}: {error}.") from error
        if own:
            raise GangError(
                f"Cannot {doing}: exclude, in slurm.yaml or of the run, names {', '.join(own)}, which "
                "Slurm does not know; `sinfo -N` lists its nodes."
            )
        return fewer

    def _accounts(self, *filters: str) -> str:
        words = ("sacct", "-D", "-P", f"--format={ACCOUNT_FIELDS}", *filters)
        done = self._call("read Slurm's accounting", words)
        is_off = done.returncode != 0 and bool(_NO_ACCOUNTING.search(self._words(done)))
        return "" if is_off else self._checked("read Slurm's accounting", done)

    def _end(self, verb: str, id_: str, *options: str) -> None:
        doing = f"{verb} job {id_}"
        done = self._call(doing, ("scancel", *options, id_), limit_s=END_S_MAX)
        words = self._words(done)
        if done.returncode != 0 and self._passes(done):
            raise GangUnreachable(f"Cannot {doing} now: {words}")
        is_over = re.search(r"Invalid job id|already completing|completed", words)
        if done.returncode != 0 and not is_over:
            raise GangError(f"Cannot {doing}: {words}")

    def _answer(self, doing: str, words: Sequence[str], *, limit_s: float = CALL_S_MAX) -> str:
        return self._checked(doing, self._call(doing, words, limit_s=limit_s))

    def _checked(self, doing: str, done: subprocess.CompletedProcess[str]) -> str:
        if done.returncode == 0:
            return done.stdout
        words = self._words(done)
        if self._passes(done):
            raise GangUnreachable(f"Cannot {doing} now: {words}")
        raise GangError(f"Cannot {doing}: {words}")

    def _call(
        self, doing: str, words: Sequence[str], *, given: str = "", limit_s: float = CALL_S_MAX
    ) -> subprocess.CompletedProcess[str]:
        environment = {**self._own, **UTC_TIMES}
        if words[0] == "sbatch":
            environment = {**self._own, **self._passed}
        argv = list(words)
        if self._settings.host is not None:
            times = [] if words[0] == "sbatch" else [f"{k}={v}" for k, v in UTC_TIMES.items()]
            argv = [*_SSH, self._settings.host, shlex.join(["env", *times, *words])]
        try:
            return self._run(argv, given=given, limit_s=limit_s, environment=environment)
        except subprocess.TimeoutExpired as error:
            kind = SubmitUnknown if words[0] == "sbatch" else GangUnreachable
            raise kind(f"Cannot {doing} now: no answer within {limit_s:g} s.") from error
        except OSError as error:
            hint = "install Slurm's client here, or name a login node (host: in slurm.yaml)"
            raise GangError(f"Cannot {doing}: {argv[0]}: {error.strerror}; {hint}.") from error

    def _passes(self, done: subprocess.CompletedProcess[str]) -> bool:
        """Whether the same call may succeed later; ssh says by its exit code that it met nobody.

        A program that was killed, by a login node's limits for example, may have done its work.
        """
        is_lost = self._settings.host is not None and done.returncode == SSH_LOST
        words = self._words(done)
        if self._cure(done):
            return False
        return done.returncode < 0 or is_lost or any(p.search(words) for p in (_PASSES, _NOT_NOW))

    def _words(self, done: subprocess.CompletedProcess[str]) -> str:
        text = self._clean(_text(done))[-WORDS_MAX:]
        cure = self._cure(done)
        return (f"{text} {cure}" if cure else text) or (
            f"exit code {done.returncode} without a word"
        )

    def _cure(self, done: subprocess.CompletedProcess[str]) -> str:
        """Return what to do where ssh itself refused: nothing was run; "" where it did not."""
        host, text = self._settings.host, _text(done)
        if host is None or done.returncode != SSH_LOST or _NO_NAMES_NOW in text:
            return ""
        found = next((words for sentence, words in _SSH_REFUSES.items() if sentence in text), "")
        return f"({found.format(host=host)})" if found else ""


def _text(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stderr or done.stdout or "").split())
