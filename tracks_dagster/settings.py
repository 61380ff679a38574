"""The settings that a person gives: the environment, the policy file and the rules file.

Beside the trainer's `join` this is the only reader of the environment. Nothing is made or opened
here; `wiring` builds on the answers.
"""

from __future__ import annotations

import getpass
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from tracks_dagster.scheduling.devices_given import DevicesGiven, parse_given
from tracks_dagster.track.errors import InvalidInput, SettingsError
from tracks_dagster.track.names import ENV_SOCKETS, NO_PREFIX, Prefix
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.text.redact import secrets_of
from tracks_dagster.wing import launchers, settings_files

if TYPE_CHECKING:
    from tracks_dagster.ledger.prices import Prices
    from tracks_dagster.projects.effects.registered import Registered
    from tracks_dagster.reasons.user_rules import UserRules
    from tracks_dagster.retry.policy import RetryPolicy

UI_DAYS, UI_DAYS_MAX = 90.0, 36_500
LEDGER_FILE = "ledger.db"
POLICY_FILE = "policy.yaml"
PRICES_FILE = "prices.yaml"
EXAMPLES = Path(__file__).parent / "examples"  # the projects that ship
STOCK = "stock"
DATABASE_CHARACTERS = 12  # of the hash that tells two homes apart
POSTGRES_SCHEMES = ("postgresql", "postgres", "postgresql+psycopg2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where everything lives. postgres_url: for psycopg2, or None for SQLite under `home`.

    policy_file: a person's own retry policy; None where it would lie in `home`, if there is one.
    rules_file: a user's own rules of the classifier; root: the checkout, which holds workspace.yaml.
    secrets: values that no text may show. ui_url: of Dagster's web server, for links; empty: paths.
    board_url: by which people reach the board; empty: that of `tracks up`.
    prices_file: what a device hour costs, None where it would lie in `home`. files: those of wings, by
    the variable that names one; who is missing would lie in `home`. ui_days: for how long the
    partitions of a finished run stay in Dagster's UI. sockets: how the names begin by which the
    programs of a home that is up find each other; None outside of them. devices_text, visible:
    TRACKS_DEVICES, and what this process may see of the machine's accelerators (CUDA_VISIBLE_DEVICES;
    None: all). pool_url: of the store with the track of who has them; None: `store_url`. is_stock:
    whether Dagster's programs are its own, whatever a wing brings. prefix: how the names of our
    definitions begin in Dagster.
    """

    home: Path
    store_url: str
    postgres_url: str | None = field(default=None, repr=False)
    policy_file: Path | None = None
    root: Path = Path()
    secrets: tuple[str, ...] = field(default=(), repr=False)
    rules_file: Path | None = None
    files: Mapping[str, Path] = field(default_factory=dict, hash=False)
    ui_url: str = ""
    board_url: str = ""
    prices_file: Path | None = None
    ui_days: float = UI_DAYS
    sockets: Path | None = None
    devices_text: str = ""
    visible: str | None = None
    pool_url: str | None = None
    is_stock: bool = False
    prefix: Prefix = NO_PREFIX

    def __post_init__(self) -> None:
        """Raise SettingsError for devices that cannot be meant."""
        try:
            parse_given(self.devices_text, self.visible)
        except InvalidInput as error:
            raise SettingsError(str(error)) from error

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str] | None = None,
        *,
        changed: Mapping[str, str] | None = None,
    ) -> Settings:
        """Read TRACKS_HOME, TRACKS_STORE, TRACKS_POSTGRES_URL, TRACKS_POLICY, TRACKS_RULES,
        TRACKS_UI_URL, TRACKS_BOARD_URL, TRACKS_PRICES, TRACKS_UI_DAYS, TRACKS_DEVICES, TRACKS_POOL,
        TRACKS_DAGSTER, TRACKS_PREFIX, the files of wings and what a home's programs set.

        An empty value counts as unset. changed: variables that a caller gives instead. Touches nothing.
        Raises SettingsError for a value that cannot be used.
        """
        given = {**(os.environ if environment is None else environment), **(changed or {})}
        root = find_root()
        home = _place("TRACKS_HOME", given.get("TRACKS_HOME") or str(root / ".tracks"))
        postgres_url = given.get("TRACKS_POSTGRES_URL") or None
        policy_file = given.get("TRACKS_POLICY") or None
        rules = given.get("TRACKS_RULES")
        prices = given.get("TRACKS_PRICES")
        pool = given.get("TRACKS_POOL")
        return cls(
            home=home,
            store_url=_absolute("TRACKS_STORE", given.get("TRACKS_STORE") or str(home / "store")),
            postgres_url=None if postgres_url is None else _for_psycopg2(postgres_url),
            policy_file=None if policy_file is None else _place("TRACKS_POLICY", policy_file),
            root=root,
            secrets=secrets_of(given),
            rules_file=None if not rules else _place("TRACKS_RULES", rules),
            files={name: _place(name, given[name]) for name in settings_files() if given.get(name)},
            ui_url=_web_url("TRACKS_UI_URL", given.get("TRACKS_UI_URL") or ""),
            board_url=_web_url("TRACKS_BOARD_URL", given.get("TRACKS_BOARD_URL") or ""),
            prices_file=None if not prices else _place("TRACKS_PRICES", prices),
            ui_days=_days(given.get("TRACKS_UI_DAYS") or ""),
            sockets=Path(sockets) if (sockets := given.get(ENV_SOCKETS)) else None,
            devices_text=given.get("TRACKS_DEVICES") or "",
            visible=given.get("CUDA_VISIBLE_DEVICES"),
            pool_url=_absolute("TRACKS_POOL", pool) if pool else None,
            is_stock=_is_stock(given.get("TRACKS_DAGSTER") or ""),
            prefix=_prefix(given.get("TRACKS_PREFIX") or ""),
        )

    @property
    def ledger_url(self) -> str:
        """The SQLAlchemy URL of the ledger."""
        return self.postgres_url or f"sqlite:///{self.home / LEDGER_FILE}"

    @property
    def database_id(self) -> str:
        """Which database has this home's ledger, as other homes of the store tell them apart.

        Without a password, so that another one makes no other home of it.
        """
        place = f"{platform.node()}:{self.home}"
        if self.postgres_url is not None:
            url = urlsplit(self.postgres_url)
            socket = parse_qs(url.query).get("host", [""])[0]
            place = f"{url.hostname}:{url.port}{socket}{url.path}"
        return sha256_hex(place.encode())[:DATABASE_CHARACTERS]

    @property
    def is_archive(self) -> bool:
        """Whether the store is an exported run: what other runs did is not known there."""
        is_path = "://" not in self.store_url and os.access(self.store_url, os.F_OK)
        return is_path and Path(self.store_url).is_file()

    @property
    def devices(self) -> DevicesGiven:
        """The devices of this machine that are given out."""
        return parse_given(self.devices_text, self.visible)

    @property
    def work(self) -> Path:
        """Where local gangs keep their files."""
        return self.home / "work"

    @property
    def cache(self) -> Path:
        """What may be removed at any time: fetched snapshots of files, and what files hashed to."""
        return self.home / "cache"

    @property
    def examples(self) -> Path:
        """Where the projects that ship lie."""
        return EXAMPLES

    @property
    def reports(self) -> Path:
        """Where reports are written, a file a run."""
        return self.home / "reports"

    @property
    def environment(self) -> dict[str, str]:
        """These settings for another process, whatever folder it starts in."""
        given = {"TRACKS_HOME": str(self.home), "TRACKS_STORE": self.store_url}
        return {
            **given,
            "TRACKS_POSTGRES_URL": self.postgres_url or "",
            "TRACKS_POLICY": "" if self.policy_file is None else str(self.policy_file),
            "TRACKS_RULES": "" if self.rules_file is None else str(self.rules_file),
            "TRACKS_UI_URL": self.ui_url,
            "TRACKS_BOARD_URL": self.board_url,
            "TRACKS_PRICES": "" if self.prices_file is None else str(self.prices_file),
            "TRACKS_UI_DAYS": f"{self.ui_days:g}",
            "TRACKS_DEVICES": self.devices_text,
            "TRACKS_POOL": self.pool_url or "",
            "TRACKS_DAGSTER": STOCK if self.is_stock else "",
            "TRACKS_PREFIX": self.prefix.text,
            **{name: str(self.files.get(name, "")) for name in settings_files()},
        }


def _file_of(settings: Settings, given: Path | None, name: str) -> Path | None:
    """Return the file that a person gave, else the home's of that name, or None when there is none.

    A link to nothing is there, and cannot be read: nobody meant a home without what it had.
    """
    path = settings.home / name
    if given is None and not os.path.lexists(path):
        return None
    return given or path


def find_policy_file(settings: Settings) -> Path | None:
    """Return the file that changes the default retry policy, or None when there is none."""
    return _file_of(settings, settings.policy_file, POLICY_FILE)


def load_policy(settings: Settings) -> RetryPolicy:
    """Return the retry policy that holds: the default, as a person's file changes it.

    Raises SettingsError naming every error of the file with its line.
    """
    from tracks_dagster.retry.default_policy import DEFAULT_POLICY

    path = find_policy_file(settings)
    return DEFAULT_POLICY if path is None else read_policy_file(path)


def read_policy_file(path: Path) -> RetryPolicy:
    """Return the default policy as the file changes it; raises SettingsError as `load_policy`."""
    from tracks_dagster.retry.default_policy import DEFAULT_POLICY
    from tracks_dagster.retry.effects.policy_file import read_policy
    from tracks_dagster.track.effects.settings_file import open_settings

    return read_policy(open_settings(path, "The policy file"), DEFAULT_POLICY)


def read_rules(settings: Settings) -> UserRules:
    """Return the user's own rules of the classifier; raises SettingsError as `load_policy`."""
    from tracks_dagster.reasons.user_rules import NO_RULES

    if settings.rules_file is None:
        return NO_RULES
    from tracks_dagster.reasons.effects import rules_file
    from tracks_dagster.track.effects.settings_file import open_settings

    file = open_settings(settings.rules_file, "The rules file", list_key=rules_file.LIST_KEY)
    return rules_file.read_rules(file)


def usable_policy(settings: Settings) -> tuple[RetryPolicy, str | None]:
    """Return the policy and None; or the shipped one and what is wrong with the file, for what may not
    stop because of it."""
    from tracks_dagster.retry.default_policy import DEFAULT_POLICY

    try:
        return load_policy(settings), None
    except SettingsError as error:
        return DEFAULT_POLICY, str(error)


def eval_tries(settings: Settings) -> int | None:
    """Return how often an eval is tried; None without a limit. It loads the policy, the shipped one
    where its file cannot be read."""
    from tracks_dagster.track.reasons import TerminationReason

    return usable_policy(settings)[0].rule(TerminationReason.EVALUATOR_ERROR).count


def policy_problem(settings: Settings) -> str | None:
    """Return what is wrong with the policy file. Without one no policy is loaded, which takes time."""
    try:
        if find_policy_file(settings) is not None:
            load_policy(settings)
    except SettingsError as error:
        return str(error)
    return None


def usable_rules(settings: Settings) -> tuple[UserRules, str | None]:
    """Return the user's rules and None; or no rules and what is wrong with their file, for what may
    not stop because of it."""
    from tracks_dagster.reasons.user_rules import NO_RULES

    try:
        return read_rules(settings), None
    except InvalidInput as error:
        return NO_RULES, str(error)


def find_file(settings: Settings, variable: str) -> Path | None:
    """Return the wing's file that the variable names, else the home's, or None when there is none."""
    return _file_of(settings, settings.files.get(variable), settings_files()[variable])


def places_set_up(settings: Settings) -> list[str]:
    """Return the launchers of wings whose settings are there."""
    return [
        name
        for name, (_, launcher) in launchers().items()
        if launcher.file and find_file(settings, launcher.file) is not None
    ]


def load_prices(settings: Settings) -> Prices | None:
    """Return what a device hour costs; None where it is not given.

    Raises SettingsError naming every error of the file with its line.
    """
    path = _file_of(settings, settings.prices_file, PRICES_FILE)
    if path is None:
        return None
    from tracks_dagster.ledger.effects.price_table import read_prices
    from tracks_dagster.track.effects.settings_file import open_settings

    return read_prices(open_settings(path, "The price table"))


def usable_prices(settings: Settings) -> tuple[Prices | None, str | None]:
    """Return what a device hour costs and None; or None and what is wrong with the table, for what may
    not stop because of it."""
    try:
        return load_prices(settings), None
    except InvalidInput as error:
        return None, str(error)


def own_secrets() -> tuple[str, ...]:
    """Return what no text of this process may show, also where its settings cannot be used."""
    return secrets_of(os.environ)


def usable_projects(given: Mapping[str, str] | None = None) -> tuple[Registered, ...]:
    """Return the projects that were added to the environment's home; none where it names no usable
    one. given: variables that count before the environment's."""
    from tracks_dagster.projects.effects.registered import load_own

    try:
        return load_own(Settings.from_environment({**os.environ, **(given or {})}).home)
    except SettingsError:  # whatever uses the application says what is wrong
        return ()


def usable_prefix() -> str:
    """Return the environment's prefix; none where the environment cannot be used."""
    try:
        return Settings.from_environment().prefix.text
    except SettingsError:
        return ""


def find_ui_url(settings: Settings) -> str:
    """Return the address of Dagster's web server: as it is set, else where `tracks up` serves it now.

    Empty where there is none. For an exported run, which another home's UI shows, only as it is set.
    """
    from tracks_dagster.home.dagster_home import read_address

    if settings.ui_url or settings.is_archive:
        return settings.ui_url
    return read_address(settings.home / "dagster")


def find_board_url(settings: Settings) -> str:
    """Return where people reach the board: the address that is set, else that of `tracks up`; empty
    where there is none, as of another home."""
    from tracks_dagster.home.dagster_home import read_address
    from tracks_dagster.home.on_demand import BOARD_FILE

    if settings.is_archive:
        return ""
    return settings.board_url or read_address(settings.home, BOARD_FILE)


def person() -> str:
    """Return the name of the one who calls, as the machine knows it."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user id without a name
        return "unknown"


def find_root() -> Path:
    """Return the folder of workspace.yaml: the checkout, or the current folder outside of one."""
    checkout = Path(__file__).resolve().parents[1]
    return checkout if (checkout / "workspace.yaml").exists() else Path.cwd()


def _absolute(variable: str, store_url: str) -> str:
    """Return a URL as it is, and a path so that it means the same to processes that run elsewhere."""
    return store_url if "://" in store_url else str(_place(variable, store_url))


def _place(variable: str, text: str) -> Path:
    """Return the absolute path that a variable names; raises SettingsError when there is none."""
    try:
        return Path(text).expanduser().absolute()
    except (RuntimeError, ValueError, OSError) as error:  # of a user that is not known here
        raise SettingsError(
            f"{variable} is {text!r}, which names no place here: {error}"
        ) from error


def _days(given: str) -> float:
    """Return TRACKS_UI_DAYS; raises SettingsError for what is not a number of days from 1 on."""
    try:
        days = float(given) if given else UI_DAYS
    except ValueError:
        days = math.nan
    if not 1 <= days <= UI_DAYS_MAX:
        raise SettingsError(
            f"TRACKS_UI_DAYS is {given!r}: use a number of days from 1 to {UI_DAYS_MAX}."
        )
    return days


def _is_stock(given: str) -> bool:
    """Return TRACKS_DAGSTER; raises SettingsError for another word."""
    if given not in ("", STOCK):
        raise SettingsError(
            f"TRACKS_DAGSTER is {given!r}: use {STOCK!r} for Dagster's own programs, or leave it out."
        )
    return bool(given)


def _prefix(given: str) -> Prefix:
    try:
        return Prefix(given)
    except InvalidInput as error:
        raise SettingsError(f"TRACKS_PREFIX: {error}") from error


def _web_url(variable: str, url: str) -> str:
    """Return the address of a server of ours; raises SettingsError for what a browser cannot open."""
    try:
        is_address = url.startswith(("http://", "https://")) and bool(urlsplit(url).hostname)
    except ValueError:  # http://[::1
        is_address = False
    if url and not is_address:
        raise SettingsError(
            f"{variable} is {url!r}; write the address by which people reach it, for example "
            "http://localhost:3000."
        )
    return url.rstrip("/")


def _for_psycopg2(url: str) -> str:
    """Name the driver: SQLAlchemy's default for `postgresql://` differs between its versions."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in POSTGRES_SCHEMES:
        raise SettingsError(
            f"TRACKS_POSTGRES_URL begins with {scheme.split(':')[0]!r}; write "
            "postgresql://user:password@host:port/database."
        )
    return f"postgresql+psycopg2://{rest}"
