"""Whether a node answers, has the GPUs that were chosen, and the same software as the others."""

from collections import Counter
from collections.abc import Iterator

from ..check import Check, Compared, Finding, Need, failed, incomplete, passed
from ..context import Context
from ..readers.gpu_reader import Gpu, GpuLostError


def answer(context: Context) -> Iterator[Finding]:
    """Answer."""
    yield passed(got=f"process of {context.node}")


def count(context: Context) -> Iterator[Finding]:
    """Look whether each chosen GPU is there, of the type that the workload asks for, and the one that is expected."""
    reader = context.gpu_reader
    if reader is None:
        return
    there = {gpu.index: gpu for gpu in reader.gpus()}
    blueprint = context.blueprint()
    expected = {} if blueprint is None else blueprint.gpus_of(context.node)
    for index in context.chosen.gpus:
        yield _gpu_as_chosen(index, there.get(index), context.workload.gpu_type, expected.get(index, ""))


def _gpu_as_chosen(index: int, gpu: Gpu | None, kind: str, uuid: str) -> Finding:
    device = f"gpu {index}"
    if gpu is None:
        return failed(device, "it does not answer", "it answers", "reset it; restart the machine; replace it")
    if kind and kind.casefold().replace(" ", "-") not in gpu.name.casefold().replace(" ", "-"):
        return failed(device, gpu.name, kind, "correct the cluster file, or place the job elsewhere")
    if uuid and gpu.uuid != uuid:
        return failed(device, gpu.uuid, uuid, "was it replaced? learn the wiring again")
    return passed(device, got=f"{gpu.name} {gpu.uuid}")


def versions(context: Context) -> Iterator[Finding]:
    """Tell the versions of driver, library and firmware."""
    if context.gpu_reader is None:
        return
    try:
        driver = context.gpu_reader.driver()
    except GpuLostError as error:
        yield incomplete(str(error), "restart the machine")
        return
    yield passed(text=f"driver {driver.driver}, library {driver.library}, firmware {driver.firmware or 'not told'}")


def equal_on_all(told: Compared) -> Compared:
    """Return who differs from most others; everybody, where no version is that of most."""
    often = Counter(finding.text for finding in told.values()).most_common(2)
    common, times = often[0]
    if times == len(told):
        return {}
    tied = len(often) > 1 and often[1][1] == times
    wanted = "one version on all nodes" if tied else common
    return {
        node: failed("", finding.text, wanted, "reinstall the driver")
        for node, finding in told.items()
        if tied or finding.text != common
    }


RESPONSE = Check("response", 0, "the node's process answers an empty request", 0.5, answer)
COUNT = Check("count.type", 0, "each chosen GPU is there, of the right type", 0.5, count, (Need.GPU,))
VERSIONS = Check(
    "driver.match", 0, "driver, library and firmware are the same on all nodes", 0.5, versions, (Need.GPU,),
    compare=equal_on_all,
)  # fmt: skip
