"""A scheduler as it runs: its parts put together, and a thread that lets it tick."""

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..agents.registry import find_policy
from ..cluster.cluster_file import ClusterSetup, draw_faults, read_cluster
from ..cluster.scenarios import ORDERS
from .backends.local.backend import LocalBackend
from .book import Parts
from .deciding import Deciding, Mode
from .layout import Layout
from .live import Site
from .loop import Scheduler
from .metrics.registry import Metrics
from .owner import this_process
from .store.opening import Store, open_store

log = logging.getLogger(__name__)

TICK_S = 0.25
BACKFILL_DEPTH = 100  # each job that may pass costs a decision at each moment; Slurm's main loop looks at as many
LOADED_S = 300.0  # far more than a policy takes to be loaded and compiled


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be chosen of a scheduler."""

    cluster: Path
    folder: Path  # of the store, the jobs' files and logs
    store: str | None = None  # URL; a SQLite file in the folder if left out
    policy: str | None = None  # that decides; the fallback alone if left out
    fallback: str = "patient"
    mode: Mode = Mode.ACTIVE
    deadline_s: float = 0.1  # of a decision of the policy
    order: str = "easy"
    ageing_s: float = 6 * 3600.0
    waiting: bool = True


class Service:
    """A scheduler in a thread of its own.

    Args:
        settings: What was chosen.

    Raises:
        LongshoreError: If the cluster file, the store or a policy cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        setup = read_cluster(settings.cluster)
        settings.folder.mkdir(parents=True, exist_ok=True)
        self.settings = settings
        self.layout = layout_of(setup)
        self.backend = LocalBackend(settings.folder, self.layout.nodes)
        self.store: Store = open_store(settings.store or f"sqlite:///{settings.folder / 'longshore.db'}")
        deciding = Deciding(find_policy(settings.fallback), settings.policy, settings.deadline_s, settings.mode)
        site = site_of(setup, settings)
        parts = Parts(self.store, self.backend, "local", site, self.layout, deciding, time.time, this_process())
        self.scheduler = Scheduler(parts)
        self.node_types = node_types_of(setup)
        self.metrics = Metrics(self.store, self.layout, self.node_types, self.down, self.leads)
        self.store.watch_commits(self.metrics.commit_s.observe)
        self._woken, self._ends = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    def leads(self) -> bool:
        """Say whether this scheduler leads."""
        return self.scheduler.book is not None

    def down(self) -> tuple[int, ...]:
        """Return the GPUs that are out of service as the scheduler last saw them; none while it does not lead."""
        book = self.scheduler.book
        return () if book is None else tuple(book.down)

    def take_up(self) -> None:
        """Take the lease if it is free, and wait until the policy is loaded.

        Raises:
            PluginError: If the policy cannot be loaded.
        """
        if self.scheduler.tick():
            self.scheduler.parts.deciding.wait_until_ready(LOADED_S)

    def start(self) -> None:
        """Begin to schedule."""
        self._thread.start()

    def wake(self) -> None:
        """Let the scheduler look at once."""
        self._woken.set()

    def close(self) -> None:
        """Stop scheduling; jobs run on, and the next scheduler goes on with them."""
        self._ends.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()
        self.scheduler.close()
        self.store.close()

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                with self.metrics.tick():
                    self.scheduler.tick()
            except Exception:
                # A scheduler that stops is worse than one that fails a tick: jobs run on, and it tries again.
                log.exception("a tick failed")
            self._woken.wait(0.0 if self.scheduler.is_behind else TICK_S)
            self._woken.clear()


QUICKSTART = """\
# Four nodes of four slots on this machine; a slot behaves like a GPU, but no GPU is behind it.
name: quickstart
node_types:
  slots: {gpus: 4, peak_flops: 1e12, memory_bytes: 1e9, intra_bytes_per_s: 10e9, nic_bytes_per_s: 10e9}
racks:
  - nodes:
      - {type: slots, count: 4}
run_time: {model: simple, node_penalty: 0.05}
"""


def default_cluster(folder: Path) -> Path:
    """Return the cluster file of a folder, which is written if there is none."""
    path = folder / "cluster.yaml"
    if not path.exists():
        path.write_text(QUICKSTART, encoding="utf-8")
    return path


def layout_of(setup: ClusterSetup) -> Layout:
    """Return names and sizes of a cluster's nodes."""
    return Layout(setup.node_names, np.diff(setup.cluster.first_gpu).tolist())


def node_types_of(setup: ClusterSetup) -> dict[str, str]:
    """Return the node type of each node."""
    types = [setup.type_names[number] for number in setup.cluster.node_type.tolist()]
    return dict(zip(setup.node_names, types, strict=True))


def site_of(setup: ClusterSetup, settings: Settings) -> Site:
    """Return what policies know of a cluster."""
    rules = setup.rules._replace(
        order=ORDERS[settings.order], ageing_s=settings.ageing_s, waiting=settings.waiting,
        backfill_depth=BACKFILL_DEPTH,
    )  # fmt: skip
    process = draw_faults(setup, 0)[1]
    return Site(setup.cluster, rules, process, setup.hazard_per_s)
