"""GPUs by index on their node, and the devices that the driver of the node calls them.

Source: the field's shape of a claim for exact devices by CEL; NVIDIA's driver names a device by its UUID.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .objects import Device, ResourceSlice, SliceSpec

_STOPS = frozenset({"NoSchedule", "NoExecute"})

Order = Mapping[str, tuple[str, ...]]  # UUIDs of each node's GPUs in the order of their indices


class Gpu(NamedTuple):
    """A GPU of a node."""

    uuid: str
    usable: bool  # its driver offers it, and no taint forbids it


Offers = Mapping[str, tuple[Gpu, ...]]  # GPUs of each node


def published(slices: Iterable[ResourceSlice], driver: str) -> Offers:
    """Return the GPUs of each node whose driver has published all of them, as CUDA counts them: by their PCI bus ids.

    Args:
        slices: All that the cluster has.
        driver: Whose devices count.
    """
    ours = [each.spec for each in slices if each.spec.driver == driver and each.spec.node_name]
    newest: dict[str, int] = {}
    for spec in ours:
        newest[spec.node_name] = max(newest.get(spec.node_name, 0), spec.pool.generation)
    found: dict[str, list[SliceSpec]] = {}
    for spec in ours:
        if spec.pool.generation == newest[spec.node_name]:
            found.setdefault(spec.node_name, []).append(spec)
    return {
        node: tuple(_gpu(device) for device in _in_order([device for spec in specs for device in spec.devices]))
        for node, specs in found.items()
        if len(specs) == specs[0].pool.resource_slice_count
    }


def learned(order: Order, now: Offers) -> Order:
    """Return the order of GPUs with what nodes offer now taken in.

    A GPU that is lost does not move the others up: a node keeps its order until it offers as many GPUs again.
    """
    uuids = {node: tuple(gpu.uuid for gpu in gpus) for node, gpus in now.items()}
    return {**order, **{node: found for node, found in uuids.items() if len(found) >= len(order.get(node, ()))}}


def by_index(order: Order, now: Offers) -> Offers:
    """Return the GPUs of each node by index, with those that are not offered now."""
    usable = {gpu.uuid for gpus in now.values() for gpu in gpus if gpu.usable}
    return {node: tuple(Gpu(uuid, uuid in usable) for uuid in uuids) for node, uuids in order.items()}


def _in_order(devices: list[Device]) -> list[Device]:
    whole = [device for device in devices if _text(device, "uuid") and _text(device, "type") in ("", "gpu")]
    return sorted(whole, key=lambda device: (_bus_id(device), _number(device.name), device.name))


def _gpu(device: Device) -> Gpu:
    return Gpu(_text(device, "uuid"), not any(taint.effect in _STOPS for taint in device.taints))


def _bus_id(device: Device) -> str:
    """Return where a device is on the bus: by the name that all drivers share, or by one that drivers made up."""
    names = ("resource.kubernetes.io/pciBusID", "pcieBusID", "pciBusID")  # NVIDIA's says pcieBusID
    return next((text for name in names if (text := _text(device, name))), "").lower()


def _text(device: Device, name: str) -> str:
    found = device.attributes.get(name)
    return "" if found is None else found.string


def _number(name: str) -> int:
    digits = name[len(name.rstrip("0123456789")) :]
    return int(digits) if digits else -1
