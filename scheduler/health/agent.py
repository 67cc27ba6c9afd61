"""The agent of a node: tells the scheduler every few seconds that the node lives, and how its GPUs are.

Source: SPEC F1, C9.
"""

import logging
import time
from importlib.metadata import version

from ...cluster.files.errors import BackendError
from ..client import Client
from ..files.processes import boot_id
from .gpus import gpu_reports
from .reports import NodeReport

log = logging.getLogger(__name__)


def report_now() -> NodeReport:
    """Return what there is to tell of this node."""
    try:
        boot = boot_id()
    except OSError:  # another system than Linux
        boot = ""
    return NodeReport(gpus=gpu_reports(), boot_id=boot, version=version("longshore"))


def report_for_ever(client: Client, node: str, every_s: float) -> None:
    """Report until the process is stopped; a scheduler that does not answer is waited for.

    Raises:
        InputError: If the scheduler refuses the reports, as it knows no such node or the token is not an operator's.
    """
    reached = True
    while True:
        began_s = time.monotonic()
        try:
            client.report(node, report_now().model_dump(mode="json"))
        except BackendError as error:
            if reached:
                log.warning("%s; reports go on", error)
            reached = False
        else:
            if not reached:
                log.warning("the scheduler answers again")
            reached = True
        time.sleep(max(0.0, every_s - (time.monotonic() - began_s)))
