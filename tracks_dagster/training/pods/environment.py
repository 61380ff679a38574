"""What a gang's pod reads from its manifest. Imports no torch: a pod must handle SIGTERM at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tracks_dagster.attempts.ports import RankCommand
from tracks_dagster.track import names
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.errors import InvalidInput, SettingsError, TrackBroken
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.text.redact import secrets_of

PORT_MAX = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEnvironment:
    """One pod of a gang of `pods` pods with `ranks` ranks each. index: this pod's, from 0.

    command: what each rank starts. code_key: of the code in the store, None without any. work: the
    pod's own folder.
    grace_s: from SIGTERM until the kubelet kills. secrets: values that no text may show.
    """

    store_url: str
    run_id: str
    attempt_id: int
    work: Path
    node: str
    pod: str
    pod_uid: str
    index: int
    pods: int
    ranks: int
    master_addr: str
    master_port: int
    grace_s: float
    command: RankCommand
    code_key: str | None
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def ref(self) -> AttemptRef:
        """Whose gang it is of."""
        return AttemptRef(self.run_id, self.attempt_id)

    @property
    def first_rank(self) -> int:
        """The first of this pod's ranks."""
        return self.index * self.ranks

    @property
    def all_ranks(self) -> range:
        """This pod's ranks, which follow one another."""
        return range(self.first_rank, self.first_rank + self.ranks)


def read_pod_environment(environ: Mapping[str, str]) -> PodEnvironment:
    """Read `environ`; raises SettingsError naming every variable that is missing or bad."""
    given = _Reader(environ)
    pods = given.number(names.ENV_NODES, at_least=1)
    index = given.number(names.ENV_INDEX, default=0 if pods == 1 else None)
    if pods and index >= pods:
        given.problems.append(
            f"{names.ENV_INDEX} is {index} and {names.ENV_NODES} is {pods}: 0 to {pods - 1}"
        )
    port = given.number(names.ENV_MASTER_PORT, at_least=1)
    if port > PORT_MAX:
        given.problems.append(f"{names.ENV_MASTER_PORT} is {port}: 1 to {PORT_MAX}")
    pod = PodEnvironment(
        store_url=given.text(names.ENV_STORE),
        run_id=given.run_id(),
        attempt_id=given.number(names.ENV_ATTEMPT_ID, at_least=1),
        work=Path(given.text(names.ENV_WORK)),
        node=given.text(names.ENV_NODE),
        pod=given.text(names.ENV_POD),
        pod_uid=given.text(names.ENV_POD_UID),
        index=index,
        pods=pods,
        ranks=given.number(names.ENV_RANKS_PER_NODE, at_least=1),
        # One pod meets nobody, and may run where no DNS names it.
        master_addr="127.0.0.1" if pods == 1 else given.text(names.ENV_MASTER_ADDR),
        master_port=port,
        grace_s=float(given.number(names.ENV_TERMINATION_GRACE_S, at_least=1)),
        command=given.command(),
        code_key=environ.get(names.ENV_CODE_KEY) or None,
        secrets=secrets_of(environ),
    )
    given.number(names.ENV_OPENED_SEQ)  # the ranks read it
    given.complain()
    return pod


class _Reader:
    """Reads variables and keeps what is wrong with them, so that a person sees all of it at once."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.problems: list[str] = []
        self._environ = environ

    def text(self, name: str) -> str:
        value = self._environ.get(name, "")
        if not value:
            self.problems.append(f"{name} is not set")
        return value

    def number(self, name: str, *, at_least: int = 0, default: int | None = None) -> int:
        if default is not None and not self._environ.get(name):
            return default
        value = self.text(name)
        if value and not (value.isdecimal() and int(value) >= at_least):
            self.problems.append(f"{name} is {value!r}: a whole number from {at_least} on")
            return 0
        return int(value or 0)

    def command(self) -> RankCommand:
        value = self.text(names.ENV_COMMAND)
        try:
            return from_json(RankCommand, parse_json(value or '{"words": []}'))
        except (ValueError, TrackBroken) as error:
            self.problems.append(f"{names.ENV_COMMAND} is not a command: {error}")
            return RankCommand(words=())

    def run_id(self) -> str:
        value = self.text(names.ENV_RUN_ID)
        if value:
            try:
                names.check_run_id(value)
            except InvalidInput as error:
                self.problems.append(f"{names.ENV_RUN_ID}: {error}")
        return value

    def complain(self) -> None:
        if self.problems:
            raise SettingsError(
                "This pod of a gang cannot start; its Job's manifest sets what it needs: "
                f"{'; '.join(self.problems)}."
            )
