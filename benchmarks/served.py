"""A scheduler in a process of its own, for benchmarks that ask it by its API."""

import http.client
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

# Open, as it is measured without tokens; as root only where everything is.
from longshore.cluster.files.processes import free_port

SERVE = ["serve", "--open", *(["--as-root"] if os.geteuid() == 0 else [])]
READY_S = 120.0  # the first start of a machine compiles


class Served:
    """`longshore serve` in a folder, with slots on which nothing has run yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "longshore", *SERVE, "--port", str(self.port)]
        with (self._folder / "serve.log").open("ab") as log:
            return subprocess.Popen(line, cwd=self._folder, stdout=log, stderr=log)

    def wait_until_ready(self) -> None:
        """Wait until it schedules.

        Raises:
            RuntimeError: If it has ended instead, or takes too long; with the end of what it wrote.
        """
        give_up = time.monotonic() + READY_S
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError((self._folder / "serve.log").read_text()[-2000:])
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10.0)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()

    def kill_and_start(self) -> None:
        """Kill it without a word, and start it again in the same folder."""
        self.process.kill()
        self.process.wait()
        self.process = self._started()

    def cpu_s(self) -> float:
        """Return the CPU time that it has taken."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        """Stop it."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
