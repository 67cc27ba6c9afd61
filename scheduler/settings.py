"""What can be chosen of a scheduler: one file, and options of the command line over it."""

from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..agents.registry import checkpoint_in
from ..cluster.files.errors import InputError
from ..cluster.files.yaml_file import YamlFile, read_yaml, validated
from ..cluster.model.orders import OrderName
from .access.token_file import is_loopback
from .model.job_spec import Priority

SQLITE = "sqlite"  # scheme of the URL of a store that is a file
SETTINGS_PAGE = "docs/configuration.md"  # on configuration files
Name = Annotated[str, Field(min_length=1, max_length=253)]


class _SettingsSection(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BackendChoice(_SettingsSection):
    """Who runs the jobs."""

    name: Name = "local"
    settings: dict[str, object] = {}  # its own, as docs/configuration.md has them


class PolicyChoice(_SettingsSection):
    """Who decides."""

    name: Name | None = None  # of a policy, or a checkpoint; by default the fallback alone
    mode: Literal["active", "shadow", "veto"] = "active"  # as `Mode` of placement/placer.py
    fallback: Name = "patient"  # heuristic that decides whenever the policy does not
    deadline_s: Annotated[float, Field(gt=0.0, le=3600.0)] = 0.1  # of one decision
    sample_temperature: Annotated[float | None, Field(gt=0.0, le=100.0)] = None  # of its network; None: the best

    @model_validator(mode="after")
    def _check_sampled_policy(self) -> Self:
        if self.sample_temperature is not None and self.name is None:
            raise ValueError("sample_temperature is that of a policy; name one")
        return self


class UserLimits(_SettingsSection):
    """What one user may have."""

    queued_jobs: Annotated[int, Field(ge=1)] = 10_000  # more are refused
    priority: Priority | None = 0  # operators may give more; None: all may
    gpus: Annotated[int | None, Field(ge=1)] = None  # held and in the queue; further jobs wait until some have ended


Days = Annotated[float | None, Field(ge=1.0, le=36500.0)]  # a day: for so long a repeated request names its job


class RetentionChoice(_SettingsSection):
    """How long what is over is kept; None for ever."""

    jobs_days: Days = 90.0  # since their ends, with all that belongs to them: attempts, logs, events, decisions
    events_days: Days = 30.0  # but those of jobs that have not ended
    decisions_days: Days = 30.0  # the same


class PreflightChoice(_SettingsSection):
    """What is checked before jobs start."""

    jobs: Literal["auto", "off"] = "off"  # whether jobs are checked whose job files do not decide it
    wiring: Path | None = None  # file of expected wiring
    port_facts: Path | None = None  # file of a tool of the site on transceivers and neighbours
    link_bytes_per_s: Annotated[float, Field(ge=0.0, le=1e18)] = 0.0  # between nodes of a job, 0.8 of which passes
    scratch: Path | None = None  # folder on each node in which a job has one of its own, that is removed after it


class SchedulerSettings(_SettingsSection):
    """What can be chosen of a scheduler. Paths of a file start from its folder."""

    cluster: Path | None = None  # by default the GPUs of this machine, or four nodes of four slots
    folder: Path = Path(".longshore")  # of the store, the jobs' files and logs
    store: str | None = None  # URL; by default a SQLite file in the folder
    backend: BackendChoice = BackendChoice()
    policy: PolicyChoice = PolicyChoice()
    order: OrderName = "shortest"  # this order, bound and fallback: bench-default
    ageing_s: Annotated[float, Field(ge=0.0)] = 7 * 24 * 3600.0
    waiting: bool = True
    turns: bool = True  # users of one priority take turns in the queue
    host: Name = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 8765
    open: bool = False  # users of this machine need no token
    as_root: bool = False  # it may run as root, and so may every job that it starts itself
    poll_s: Annotated[float, Field(ge=0.1, le=60.0)] = 5.0  # in which every node is to answer once
    fencing: Literal["off", "leases"] = "off"  # what proves that nothing runs on a node that does not answer
    preflight: PreflightChoice = PreflightChoice()
    limits: UserLimits = UserLimits()
    retention: RetentionChoice = RetentionChoice()
    least_free_bytes: Annotated[int, Field(ge=0)] = 256 << 20  # on the disk; with less no job is taken in or started

    @property
    def store_url(self) -> str:
        """URL of the store."""
        return self.store or default_store_url(self.folder)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can ask the API."""
        return is_loopback(self.host)


def check_open_is_local(settings: SchedulerSettings) -> None:
    """Refuse a scheduler that others can ask and that asks for no token.

    Raises:
        InputError: If it is one.
    """
    if settings.open and not settings.is_loopback:
        raise InputError(
            f"host {settings.host} lets other machines run programs here, and an open scheduler asks for no token",
            "leave `open` out, or serve at 127.0.0.1",
        )


class ServeOptions(NamedTuple):
    """Settings, and the file that they come from."""

    settings: SchedulerSettings = SchedulerSettings()
    file: YamlFile | None = None


def read_settings(path: Path) -> ServeOptions:
    """Return the settings of a configuration file.

    Raises:
        InputError: If it cannot be read or used, naming the line.
    """
    file = read_yaml(path, SETTINGS_PAGE)
    return ServeOptions(with_absolute_paths(validated(file, SchedulerSettings, file.data), file), file)


def with_absolute_paths(found: SchedulerSettings, file: YamlFile) -> SchedulerSettings:
    """Return settings whose paths start from the folder of the file that they come from."""
    home = file.path.absolute().parent
    cluster, asked = _path_from(home, found.cluster), found.preflight
    preflight = asked.model_copy(
        update={name: _path_from(home, getattr(asked, name)) for name in ("wiring", "port_facts", "scratch")}
    )
    policy = found.policy
    if policy.name is not None and (checkpoint := checkpoint_in(policy.name)) is not None:
        name = policy.name.replace(str(checkpoint), str(home / checkpoint), 1)
        policy = policy.model_copy(update={"name": name})
    store = None if found.store is None else _store_from(home, found.store)
    return found.model_copy(
        update={
            "cluster": cluster, "folder": home / found.folder, "store": store, "policy": policy, "preflight": preflight
        }
    )  # fmt: skip


def _store_from(home: Path, url: str) -> str:
    """Return the URL of a store whose file, if it is one, starts from a folder."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return url  # opening the store gives the error
    if parsed.get_backend_name() != SQLITE or parsed.database in (None, "", ":memory:"):
        return url
    return parsed.set(database=str(home / str(parsed.database))).render_as_string(hide_password=False)


def _path_from(home: Path, path: Path | None) -> Path | None:
    return None if path is None else home / path


def default_cluster_file(folder: Path) -> Path:
    """Return the cluster file of a scheduler that names none."""
    return folder / "cluster.yaml"


def default_store_url(folder: Path) -> str:
    """Return the URL of the store that is a file in a scheduler's folder."""
    from sqlalchemy import URL

    return URL.create(SQLITE, database=str(folder / "longshore.db")).render_as_string()
