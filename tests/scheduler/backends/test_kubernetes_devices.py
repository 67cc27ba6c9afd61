"""GPUs of a node by index, as their driver publishes them."""

import pytest

from longshore.scheduler.backends.kubernetes.objects import ResourceSlice, published_gpus

DRIVER = "gpu.nvidia.com"
BUS_IDS = ("0000:C1:00.0", "0000:81:00.0", "0000:41:00.0", "0000:01:00.0")  # of gpu-0 to gpu-3


def slice_of(*names: str) -> ResourceSlice:
    """Return what a driver publishes that tells bus ids by these names."""
    devices = []
    for number, bus_id in enumerate(BUS_IDS):
        reported = {name: {"string": bus_id} for name in names}
        attributes = {"uuid": {"string": f"GPU-{number}"}, "type": {"string": "gpu"}, **reported}
        devices.append({"name": f"gpu-{number}", "attributes": attributes})
    spec = {"driver": DRIVER, "nodeName": "a", "pool": {"name": "a"}, "devices": devices}
    return ResourceSlice.model_validate({"metadata": {"name": "a", "uid": "1", "resourceVersion": "1"}, "spec": spec})


@pytest.mark.parametrize(
    "names",
    [
        ("resource.kubernetes.io/pciBusID",), ("pcieBusID",), ("pciBusID",),
        ("pcieBusID", "resource.kubernetes.io/pciBusID"),
    ],
)  # fmt: skip
def test_gpus_are_counted_by_their_bus_ids_whatever_the_driver_calls_them(names: tuple[str, ...]) -> None:
    offers = published_gpus([slice_of(*names)], DRIVER)
    assert [gpu.uuid for gpu in offers["a"]] == ["GPU-3", "GPU-2", "GPU-1", "GPU-0"]


def test_gpus_without_a_bus_id_are_counted_by_the_numbers_in_their_names() -> None:
    assert [gpu.uuid for gpu in published_gpus([slice_of()], DRIVER)["a"]] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
