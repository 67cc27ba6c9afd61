"""Where the Kubernetes API is, and how it is spoken to."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import httpx

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
FOLLOW_S = 300  # after which a watch is ended and begun again where it was


@dataclass(frozen=True, slots=True)
class Api:
    """Where the Kubernetes API is.

    Args:
        url: Its address.
        account: Folder of a service account's token and certificate; None where neither is needed.
    """

    url: str
    account: Path | None = None

    def client(self) -> httpx.Client:
        """Return a client; its token is read again for each, as Kubernetes replaces it every hour."""
        limits = httpx.Timeout(10.0, read=FOLLOW_S + 30.0)
        if self.account is None:
            return httpx.Client(base_url=self.url, timeout=limits)
        token = (self.account / "token").read_text(encoding="ascii").strip()
        verify = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, timeout=limits, headers=headers, verify=verify)
