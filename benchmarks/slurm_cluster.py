"""A real Slurm on this machine: its controller and some nodes with four GPUs each, which are links to /dev/null."""

import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from longshore.cluster.files.processes import Identity, boot_id, environment, find, free_port, is_alive, kill, living
from tests.support import processes

GPUS = 4
PLUGIN = Path(__file__).parents[1] / "deploy" / "slurm" / "job_submit.lua"
INSTALL = "apt-get install --no-install-recommends slurm-wlm slurm-wlm-basic-plugins"

_PATIENCE_S = 60.0
_FOLDER, _FILE, _UMASK = 0o755, 0o644, 0o022  # its users read its configuration, whatever this process keeps to itself
_CONF = """\
ClusterName=longshore
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
StateSaveLocation={root}/state
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdPidFile={root}/run/slurmd.%n.pid
SlurmdLogFile={root}/log/slurmd.%n.log
SlurmdSpoolDir={root}/spool/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
GresTypes=gpu
AccountingStorageType=accounting_storage/none
MinJobAge=300
JobRequeue=0
KillWait=2
SlurmdTimeout=10
MessageTimeout=10
TCPTimeout=2
ReturnToService=2
TreeWidth=65533
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def why_not() -> str:
    """Return why there can be no Slurm here, "" if there can."""
    missing = [name for name in ("slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed: {INSTALL}"
    return "" if os.getuid() == 0 else "slurmd needs root to run jobs"


def why_no_plugin() -> str:
    """Return why job_submit.lua cannot ask here, "" if it can."""
    usr = Path("/usr/lib")
    if not [*usr.glob("*/slurm*/job_submit_lua.so"), *usr.glob("slurm*/job_submit_lua.so")]:
        return "Slurm here has no job_submit/lua"
    return "" if [*usr.glob("*/lua/5.*/socket/unix.so")] else "no LuaSocket: apt-get install lua-socket"


class SlurmCluster:
    """A Slurm of our own.

    Args:
        root: Folder for all that it writes.
        nodes: Names of its nodes.
        more: Further lines of its configuration.
    """

    def __init__(self, root: Path, nodes: Sequence[str], more: str = "") -> None:
        self.root, self.nodes, self._more = root, tuple(nodes), more
        self.conf = root / "etc" / "slurm.conf"
        self._pids: dict[str, Identity] = {}
        parts = ("etc", "state", "run", "log", "dev", "spool", *(f"spool/{node}" for node in nodes))
        for folder in (root, *(root / part for part in parts)):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(_FOLDER)
        for gpu in range(GPUS):
            (root / "dev" / f"gpu{gpu}").symlink_to("/dev/null")
        self._configure()

    def _configure(self) -> None:
        port, *ports = (free_port() for _ in range(1 + len(self.nodes)))
        host, gres = socket.gethostname(), ",".join(f"gpu:i{gpu}:1" for gpu in range(GPUS))
        lines = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={own} CPUs=16 RealMemory=64000 Gres={gres}"
            for node, own in zip(self.nodes, ports, strict=True)
        ]
        text = _CONF.format(host=host, port=port, user="root", root=self.root, nodes="\n".join(lines))
        _write(self.conf, text + self._more)
        names = ",".join(self.nodes)
        gres_lines = [f"NodeName={names} Name=gpu Type=i{gpu} File={self.root}/dev/gpu{gpu}\n" for gpu in range(GPUS)]
        _write(self.root / "etc" / "gres.conf", "".join(gres_lines))

    def hold_jobs(self, socket: Path, partition: str = "main") -> None:
        """Install job_submit.lua, which the configuration has to name, for the jobs of one partition."""
        text = PLUGIN.read_text()
        for was, now in (("longshore = true", f"{partition} = true"), ("/run/longshore/sbatch.sock", str(socket))):
            assert was in text
            text = text.replace(was, now)
        _write(self.root / "etc" / "job_submit.lua", text)

    def start(self) -> None:
        """Start it, and wait until all its nodes take jobs."""
        self.start_controller("-c")
        for node in self.nodes:
            self.start_node(node)
        self.heal()

    def start_controller(self, *options: str) -> None:
        """Start the controller, which knows what it has saved."""
        self._start("slurmctld", *options)

    def start_node(self, node: str) -> None:
        """Start a node's daemon."""
        self._start(f"slurmd.{node}", *self._options(f"slurmd.{node}"))

    def heal(self) -> None:
        """Start what does not run, end all jobs, and wait until all nodes take others."""
        for daemon, identity in self._pids.items():
            if not is_alive(identity, boot_id()):
                self._start(daemon, *self._options(daemon))
        self.end_jobs()
        until_s = time.monotonic() + _PATIENCE_S
        while seen := [
            line for line in self.call("sinfo", "-h", "-N", "-o", "%N %T").splitlines() if "idle" not in line
        ]:
            assert time.monotonic() < until_s, f"nodes are {seen}: {self._logs()}"
            for node, state in (line.split() for line in seen):
                if state == "down":  # as a restarted controller finds in its records
                    with suppress(AssertionError):  # it has come back by itself meanwhile
                        self.call("scontrol", "update", f"NodeName={node}", "State=RESUME")
            time.sleep(0.05)

    def pid(self, daemon: str) -> int:
        """Return the pid of `slurmctld` or `slurmd.NODE`."""
        return self._pids[daemon].pid

    def kill(self, daemon: str) -> None:
        """Kill `slurmctld` or `slurmd.NODE`, and see it gone."""
        os.kill(self.pid(daemon), signal.SIGKILL)
        self._see_gone(daemon)

    def lose_node(self, node: str, reason: str = "does not answer") -> None:
        """Kill a node's daemon unless it is dead, and let the controller take note at once.

        An answer that the daemon gave before could still put the node back into service, by `ReturnToService`.
        """
        if is_alive(self._pids[f"slurmd.{node}"], boot_id()):
            self.kill(f"slurmd.{node}")
        until_s = time.monotonic() + _PATIENCE_S
        while re.search(r"^Agent count: +[1-9]", self.call("sdiag"), re.MULTILINE):
            assert time.monotonic() < until_s, "the controller waits for answers"
            time.sleep(0.02)
        self.call("scontrol", "update", f"NodeName={node}", "State=DOWN", f"Reason={reason}")

    def restart_controller(self) -> None:
        """End the controller as its administrator does, so that it saves what it knows, and start it again."""
        os.kill(self.pid("slurmctld"), signal.SIGTERM)
        self._see_gone("slurmctld")
        self.start_controller()

    def end_jobs(self) -> None:
        """End all jobs, and see them gone."""
        self.call("scancel", "--me")
        until_s = time.monotonic() + _PATIENCE_S
        while seen := self.call("squeue", "-h", "--me"):
            assert time.monotonic() < until_s, f"jobs do not end: {seen}"
            time.sleep(0.02)

    def end(self) -> None:
        """Kill its daemons, and see them gone; and what they have started, which waits for a controller for ever."""
        for daemon, identity in self._pids.items():
            if is_alive(identity, boot_id()):
                self.kill(daemon)
        conf, name = os.fsencode(self.conf), b"SLURM_CONF"
        for process in living():
            if environment(process, name).get(name) == conf:
                kill(process)

    def call(self, *line: str) -> str:
        """Run one of Slurm's commands and return what it prints."""
        environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        done = processes.run(
            line, env=environment, umask=_UMASK, capture_output=True, timeout_s=_PATIENCE_S, check=False
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    def _start(self, daemon: str, *options: str) -> None:
        self.call(daemon.partition(".")[0], *options, "-f", str(self.conf))
        file = self.root / "run" / f"{daemon}.pid"
        until_s = time.monotonic() + _PATIENCE_S
        while (identity := _identity(file, daemon)) is None or identity == self._pids.get(daemon):
            assert time.monotonic() < until_s, f"{daemon} did not start: {self._logs()}"
            time.sleep(0.01)
        self._pids[daemon] = identity

    def _options(self, daemon: str) -> tuple[str, ...]:
        return () if daemon == "slurmctld" else ("-N", daemon.removeprefix("slurmd."))

    def _see_gone(self, daemon: str) -> None:
        until_s = time.monotonic() + _PATIENCE_S
        while is_alive(self._pids[daemon], boot_id()):
            assert time.monotonic() < until_s, f"{daemon} does not end"
            time.sleep(0.01)

    def _logs(self) -> str:
        return (self.root / "log" / "slurmctld.log").read_text()[-2000:]


def _write(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(_FILE)


def _identity(file: Path, daemon: str) -> Identity | None:
    """Return the daemon whose pid is in a file, once it is there and lives."""
    text = file.read_text().strip() if file.exists() else ""
    process = find(int(text)) if text else None
    if process is None or not process.alive:
        return None
    name = Path(f"/proc/{process.pid}/comm").read_text().strip()
    return Identity(process.pid, process.start_ticks, boot_id()) if name == daemon.partition(".")[0] else None
