"""A configuration checked without starting anything: all errors in it, not only the first."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isinf
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ValidationError

from ...agents.learned.schema import USERS, UsedUnder, training_mismatch
from ...agents.registry import find_policy
from ...cluster.files.errors import InputError, LongshoreError, ManyProblemsError
from ...cluster.files.input_problems import Place
from ...cluster.files.paths import exists, is_folder
from ...cluster.files.yaml_file import YamlFile, read_yaml, validated
from ...cluster.presets.cluster_file import ClusterSetup, read_cluster
from ..access.token_file import is_loopback
from ..backends.building import PLACE, backend_class
from ..policy_host.worker import with_sampling
from ..service.own_cluster import own_cluster
from ..settings import SETTINGS_PAGE, SchedulerSettings, check_open_is_local, default_cluster_file, with_absolute_paths
from ..store.database import check_folder_of, check_url, file_of


class ConfigReport(NamedTuple):
    """Result of a check."""

    problems: list[LongshoreError]
    settings: SchedulerSettings  # without what is wrong with them
    cluster: ClusterSetup | None  # None if there is none in a file, or it cannot be read
    remarks: tuple[str, ...] = ()  # on policies that were trained under something else


def check(path: Path | None) -> ConfigReport:
    """Return the errors of a configuration file, and its settings; the defaults without one.

    It makes no folder, opens no store and calls no backend.
    """
    if path is None:
        return ConfigReport([], SchedulerSettings(), None)
    try:
        file = read_yaml(path, SETTINGS_PAGE)
    except InputError as error:
        return ConfigReport([error], SchedulerSettings(), None)
    problems = _problems_in(file, SchedulerSettings, file.data)
    settings = with_absolute_paths(_sound_settings(file.data), file)
    problems += _backend_problems(file, settings)
    own = cluster = None
    with _noting_errors(problems, file, ("folder",)):
        _check_folder(settings.folder)
        own = default_cluster_file(settings.folder) if exists(default_cluster_file(settings.folder)) else None
    with _noting_errors(problems, file, ("cluster",)):
        cluster = None if (found := settings.cluster or own) is None else read_cluster(found)
    remarks, use = [], _policy_use_of(settings)
    for place, name in ((("policy", "fallback"), settings.policy.fallback), (("policy", "name"), settings.policy.name)):
        with _noting_errors(problems, file, place):
            if name is not None and (remark := training_mismatch(find_policy(name), use)):
                remarks.append(f"policy {name}: {remark}")
    choice = settings.policy
    if choice.name is not None and choice.sample_temperature is not None:
        with _noting_errors(problems, file, ("policy", "sample_temperature")):
            with_sampling(find_policy(choice.name), choice.sample_temperature)
    with _noting_errors(problems, file, ("store",)):
        check_url(settings.store_url)
        path = file_of(settings.store_url)
        if path is not None and path.parent != settings.folder:  # that one is made
            check_folder_of(path)
    with _noting_errors(problems, file, ("open",)):
        check_open_is_local(settings)
    return ConfigReport(problems, settings, cluster, tuple(remarks))


def _policy_use_of(settings: SchedulerSettings) -> UsedUnder:
    """Return what policies are used under."""
    ageing_h = None if isinf(settings.ageing_s) else settings.ageing_s / 3600.0
    return UsedUnder((settings.order,), ageing_h, settings.waiting, USERS, oracle=False)


def summary(checked: ConfigReport) -> Iterator[str]:
    """Yield a configuration in words, a line for each part."""
    settings, cluster = checked.settings, checked.cluster
    if cluster is None:
        yield f"cluster: {own_cluster().splitlines()[0].removeprefix('# ')}"
    else:
        gpus, nodes = int(cluster.cluster.first_gpu[-1]), len(cluster.node_names)
        yield f"cluster: {settings.cluster or default_cluster_file(settings.folder)}, {gpus} GPUs on {nodes} nodes"
    policy = settings.policy
    name = policy.fallback if policy.name is None else f"{policy.name} ({policy.mode}), {policy.fallback} if it fails"
    yield f"policy: {name}; order {settings.order}"
    yield from checked.remarks
    yield f"backend: {settings.backend.name}"
    yield f"store: {'SQLite in the folder' if settings.store is None else _without_password(settings.store)}"
    yield f"folder: {settings.folder}"
    others = "" if is_loopback(settings.host) else ", which other machines reach: make a token first"
    yield f"serves at {settings.host}:{settings.port}{others}"


def _check_folder(folder: Path) -> None:
    """Refuse a folder that is none, or that cannot be made as something above it is none."""
    there = next(path for path in (folder, *folder.parents) if exists(path) or path.is_symlink())
    if not is_folder(there):
        raise InputError(f"{there} is no folder", "name one, or none that exists")


def _backend_problems(file: YamlFile, settings: SchedulerSettings) -> list[LongshoreError]:
    choice = settings.backend
    try:
        kind: type[BaseModel] = backend_class(choice.name, file).Settings
    except LongshoreError as error:
        return [error]
    return _problems_in(file, kind, choice.settings, PLACE)


def _problems_in(file: YamlFile, model: type[BaseModel], data: object, place: Place = ()) -> list[LongshoreError]:
    try:
        validated(file, model, data, place)
    except InputError as error:
        return [*_single_errors(error)]
    return []


def _single_errors(error: InputError) -> list[InputError]:
    """Return the errors that one is made of."""
    return list(error.errors) if isinstance(error, ManyProblemsError) else [error]


def _sound_settings(data: object) -> SchedulerSettings:
    """Return the settings of a file without the sections in which something is wrong."""
    known = (
        {name: data[name] for name in SchedulerSettings.model_fields if name in data}
        if isinstance(data, Mapping)
        else {}
    )
    try:
        return SchedulerSettings.model_validate(known)
    except ValidationError as error:
        wrong = {str(each["loc"][0]) for each in error.errors()}
        return SchedulerSettings.model_validate({name: value for name, value in known.items() if name not in wrong})


@contextmanager
def _noting_errors(problems: list[LongshoreError], file: YamlFile, place: Place) -> Iterator[None]:
    """Note an error, at its place in the file if it names no other file."""
    try:
        yield
    except InputError as error:
        problems += [
            each if each.path is not None else file.error(place, each.problem, each.fix)
            for each in _single_errors(error)
        ]
    except LongshoreError as error:
        problems.append(file.error(place, str(error)))
    except OSError as error:  # of a file that another check reads, such as a checkpoint
        problems.append(file.error(place, f"{error.filename} cannot be read: {error.strerror}"))


def _without_password(url: str) -> str:
    from ..store.database import check_url, shown_url

    return shown_url(check_url(url))
