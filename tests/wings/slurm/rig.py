"""A real Slurm on this machine: NODES with pretended GPUs, accounting, a partition that preempts.

Debian's packages: slurm-wlm slurmdbd munge mariadb-server; as root, since slurmd and MariaDB change
their user. `low` gives way to `high`, after 15 s of grace. A job that takes more memory than it asked
for is ended by Slurm itself, which needs no cgroups of the kernel. Up in about 20 s; every daemon is a
child of the test and ends with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.ports import free_port

PROGRAMS = ("munged", "mariadbd", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "sbatch")
UP_S_MAX = 120.0
DOWN_S_MAX = 30.0  # for jobs that were cancelled to end
POLL_S = 0.5
NODES = ("n1", "n2", "n3", "n4")  # two for a gang, two that it can lose
USERS = ("127.0.0.1", "localhost")


def why_none() -> str:
    """Return why this machine can have none; empty where it can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if lacking:
        return (
            f"no Slurm here: {', '.join(lacking)} missing (slurm-wlm slurmdbd munge mariadb-server)"
        )
    return "" if os.geteuid() == 0 else "slurmd and MariaDB need root"


class Rig:
    """The cluster. environment: what its programs want."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def call(self, *words: str) -> str:
        """Run one of Slurm's programs, or of its database's."""
        done = subprocess.run(
            words, env=self._env, check=False, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def is_up(self, *words: str) -> bool:
        """Whether a program answers."""
        try:
            done = subprocess.run(
                words, env=self._env, check=False, capture_output=True, timeout=20
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def start(self, name: str, *words: str) -> None:
        """Start a daemon in the foreground, as a child."""
        with (self.folder / f"{name}.out").open("ab") as log:
            self._children[name] = subprocess.Popen(
                words, env=self._env, stdout=log, stderr=log, cwd=self.folder
            )

    def stop(self, name: str) -> None:
        """End a daemon that was started here."""
        child = self._children.pop(name)
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(20)

    def start_controller(self) -> None:
        """Start the controller, which may have been away."""
        self.start("slurmctld", "slurmctld", "-D")

    def down(self) -> None:
        """End every job, every daemon, the newest first, and whatever of a job is left then.

        What slurmd has started outlives it on purpose.
        """
        if self.is_up("scancel", "--quiet", "--user=root"):
            give_up_at = time.monotonic() + DOWN_S_MAX
            while time.monotonic() < give_up_at and self._jobs():
                time.sleep(POLL_S)
        daemons = {child.pid for child in self._children.values()}
        for pid in self._processes() - daemons:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for name in reversed(list(self._children)):
            self.stop(name)

    def _jobs(self) -> str:
        try:
            return self.call("squeue", "-h", "-o", "%i")
        except (AssertionError, subprocess.TimeoutExpired):
            return ""

    def _processes(self) -> set[int]:
        """Return every process that was given this cluster's configuration, but the test's own."""
        mine, found = f"SLURM_CONF={self.environment['SLURM_CONF']}\0".encode(), set()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and mine in (entry / "environ").read_bytes():
                    found.add(int(entry.name))
        return found - {os.getpid()}

    def state(self, job: str) -> str:
        """Return a job's state by the queue."""
        return self.call("squeue", "-h", "--states=all", "-j", job, "-o", "%T").strip()

    def up(self) -> None:
        """Start all of it."""
        folder = self.folder
        for name in ("state", "db", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir()
        shutil.chown(folder / "db", "mysql")
        for each in (folder, *folder.parents):  # the database's user has to come through
            if each.stat().st_uid == os.geteuid() and each != Path("/"):
                each.chmod(each.stat().st_mode | 0o011)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        for number in (0, 1):
            subprocess.run(["mknod", str(folder / f"gpu{number}"), "c", "1", "3"], check=True)
        ports = {name: free_port() for name in ("ctld", "dbd", "db", *NODES)}
        (folder / "slurm.conf").write_text(_slurm_conf(folder, ports))
        gpus = f"NodeName={','.join(NODES)} Name=gpu File={folder}/gpu[0-1]\n"
        (folder / "gres.conf").write_text(gpus)
        half = len(NODES) // 2
        (folder / "topology.conf").write_text(
            f"SwitchName=leaf1 Nodes={','.join(NODES[:half])}\n"
            f"SwitchName=leaf2 Nodes={','.join(NODES[half:])}\n"
            "SwitchName=spine Switches=leaf[1-2]\n"
        )
        database = folder / "slurmdbd.conf"
        database.write_text(_slurmdbd_conf(folder, ports))
        database.chmod(0o600)
        munge = [f"--key-file={key}", f"--socket={folder}/munge.sock", f"--pid-file={folder}/m.pid"]
        munge += [f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed"]
        self.start("munged", "munged", "--foreground", "--force", *munge)
        data = f"--datadir={folder}/db"
        install = ("mariadb-install-db", "--user=mysql", data)
        self.call(*install, "--auth-root-authentication-method=normal")
        socket = f"--socket={folder}/db/db.sock"
        where = (socket, f"--port={ports['db']}", "--bind-address=127.0.0.1")
        self.start("mariadbd", "mariadbd", "--user=mysql", data, *where)
        client = ("mariadb", socket, "-u", "root", "-e")
        _wait(lambda: self.is_up(*client, "select 1"))
        self.call(*client, "; ".join(_grants()))
        self.start("slurmdbd", "slurmdbd", "-D")
        _wait(lambda: self.is_up("sacctmgr", "-n", "show", "cluster"))
        self.is_up("sacctmgr", "-i", "add", "cluster", "t")
        self.start_controller()
        for node in NODES:
            self.start(node, "slurmd", "-D", "-N", node)
        _wait(lambda: set(self._nodes()) == {"idle"})

    def _nodes(self) -> Sequence[str]:
        try:
            return self.call("sinfo", "-h", "-N", "-o", "%t").split()
        except (AssertionError, subprocess.TimeoutExpired):
            return ()

    @property
    def _env(self) -> dict[str, str]:
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        return {**os.environ, "PATH": path, **self.environment}


@contextmanager
def rig(folder: Path) -> Iterator[Rig]:
    """A cluster for the time of a test."""
    found = Rig(folder)
    try:
        found.up()
        yield found
    finally:
        found.down()


def _wait(happened: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + UP_S_MAX
    while not happened():
        assert time.monotonic() < give_up_at, "Slurm did not come up; its logs lie beside its state"
        time.sleep(POLL_S)


def _grants() -> Iterator[str]:
    yield "create database slurm_acct_db"
    for host in USERS:
        yield f"create user 'slurm'@'{host}' identified by 'x'"
        yield f"grant all on slurm_acct_db.* to 'slurm'@'{host}'"
    yield "flush privileges"


def _slurmdbd_conf(folder: Path, ports: dict[str, int]) -> str:
    return f"""\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
DbdHost=localhost
DbdPort={ports["dbd"]}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={ports["db"]}
StorageUser=slurm
StoragePass=x
StorageLoc=slurm_acct_db
LogFile={folder}/dbd.log
PidFile={folder}/dbd.pid
"""


def _slurm_conf(folder: Path, ports: dict[str, int]) -> str:
    host = os.uname().nodename
    size = "CPUs=2 RealMemory=8000 Gres=gpu:2 State=UNKNOWN"
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[name]} {size}"
        for name in NODES
    )
    names = ",".join(NODES)
    return f"""\
ClusterName=t
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports["ctld"]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=4000
ReturnToService=2
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={ports["dbd"]}
AccountingStoragePass={folder}/munge.sock
AccountingStorageTRES=gres/gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
TopologyPlugin=topology/tree
KillWait=10
{nodes}
PartitionName=low Nodes={names} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=15
PartitionName=high Nodes={names} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
