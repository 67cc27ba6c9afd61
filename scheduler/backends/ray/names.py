"""What Ray's nodes and GPUs are called. The nodes use it too: standard library only."""

LABEL = "longshore/node"  # of a node: its name in the cluster file
QUEUE = "ray/wanted"  # folder of the scheduler with an empty file for each attempt that the launcher has to see to
ALIVE = "ray/alive"  # file that the launcher touches


def gpu_resource(node: str, gpu: int) -> str:
    """Return the resource that a GPU is in Ray, of which its node has one.

    Args:
        node: Its node.
        gpu: Its index on the node.
    """
    return f"gpu_{node}_{gpu}"


def gpus_among(resources: dict[str, float], node: str) -> list[int]:
    """Return the indices of the GPUs of a node that are among resources of Ray.

    Args:
        resources: How much of each, by name.
        node: Name of the node.
    """
    before = gpu_resource(node, 0)[:-1]
    indices = [name.removeprefix(before) for name, much in resources.items() if name.startswith(before) and much == 1.0]
    return sorted(int(index) for index in indices if index.isdecimal())
