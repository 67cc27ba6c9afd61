"""Who runs an attempt: whoever writes its claim first, so it starts once. The nodes use it: standard library only."""

import json
import os

from ...files.durable import write_first

CANCELLED = "cancelled"


def claim(folder: int, attempt: str, *, job: int, parts: int, ranks: int, address: str) -> str:
    """Claim an attempt, to run it.

    Args:
        folder: Descriptor of the attempt's folder.
        attempt: Its name.
        job: Number of what runs it, above 0.
        parts: Its nodes.
        ranks: Its GPUs.
        address: Of its first node, for its ranks on others.

    Returns:
        A token for its supervisors; "" if it was claimed before.

    Raises:
        OSError: If it cannot be written down.
    """
    token = os.urandom(8).hex()
    where = address if parts > 1 else "127.0.0.1"
    content = {"job": job, "parts": parts, "ranks": ranks, "token": token, "address": where, "revoked": ""}
    return token if _write(folder, attempt, content) else ""


def revoke(folder: int, attempt: str, reason: str) -> bool:
    """Claim an attempt so that nothing may run it, and say whether nothing does.

    Args:
        folder: Descriptor of the attempt's folder.
        attempt: Its name.
        reason: Why nothing may.

    Raises:
        OSError: If it cannot be written down.
    """
    return _write(folder, attempt, {"job": 0, "parts": 0, "ranks": 0, "token": "", "address": "", "revoked": reason})


def _write(folder: int, attempt: str, content: dict[str, object]) -> bool:
    return write_first(folder, "claim.json", json.dumps({"attempt": attempt, **content}).encode())
