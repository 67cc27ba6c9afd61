"""GPUs by index on their node, and the devices that the driver of the node calls them.

Source: the field's shape of a claim for exact devices by CEL; NVIDIA's driver names a device by its UUID.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from .objects import Device, ResourceSlice

_STOPS = frozenset({"NoSchedule", "NoExecute"})


class Gpu(NamedTuple):
    """A GPU as its driver publishes it."""

    uuid: str
    usable: bool  # no taint forbids it


def gpus_by_node(slices: Iterable[ResourceSlice], driver: str) -> dict[str, tuple[Gpu, ...]]:
    """Return the GPUs of each node in the order of their indices: that of their PCI bus ids, as CUDA counts them.

    Args:
        slices: All that the cluster has.
        driver: Whose devices count.
    """
    ours = [each.spec for each in slices if each.spec.driver == driver and each.spec.node_name]
    newest: dict[str, int] = {}
    for spec in ours:
        newest[spec.pool.name] = max(newest.get(spec.pool.name, 0), spec.pool.generation)
    found: dict[str, list[Device]] = {}
    for spec in ours:
        if spec.pool.generation == newest[spec.pool.name]:
            found.setdefault(spec.node_name, []).extend(spec.devices)
    return {node: tuple(_gpu(device) for device in _in_order(devices)) for node, devices in found.items()}


def _in_order(devices: list[Device]) -> list[Device]:
    whole = [device for device in devices if _text(device, "uuid") and _text(device, "type") in ("", "gpu")]
    return sorted(whole, key=lambda device: (_bus_id(device), _number(device.name), device.name))


def _gpu(device: Device) -> Gpu:
    return Gpu(_text(device, "uuid"), not any(taint.effect in _STOPS for taint in device.taints))


def _bus_id(device: Device) -> str:
    return (_text(device, "resource.kubernetes.io/pciBusID") or _text(device, "pciBusID")).lower()


def _text(device: Device, name: str) -> str:
    found = device.attributes.get(name)
    return "" if found is None else found.string


def _number(name: str) -> int:
    found = re.search(r"(\d+)$", name)
    return int(found[1]) if found else -1
