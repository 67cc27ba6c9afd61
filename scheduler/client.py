"""The API as the command line sees it."""

from typing import Any

import httpx

from ..cluster.errors import BackendError, InputError


class Client:
    """Talks to a scheduler.

    Args:
        url: Where it serves.
    """

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=30.0, trust_env=False)
        self._url = url

    def _call(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **arguments)
        except httpx.TransportError as error:
            raise BackendError(
                f"no scheduler answers at {self._url} ({error}); start one with `longshore serve`"
            ) from error
        if answer.is_success:
            return answer
        try:
            detail = str(answer.json()["detail"])
        except (ValueError, KeyError):
            detail = f"status {answer.status_code}"
        raise InputError(detail) if answer.is_client_error else BackendError(f"the scheduler at {self._url}: {detail}")

    def submit(self, spec: dict[str, object]) -> dict[str, Any]:
        """Submit a job and return what it became."""
        found: dict[str, Any] = self._call("POST", "/v1/jobs", json=spec).json()
        return found

    def jobs(self, states: list[str], limit: int) -> list[dict[str, Any]]:
        """Return jobs, the last submitted first."""
        found: list[dict[str, Any]] = self._call("GET", "/v1/jobs", params={"state": states, "limit": limit}).json()[
            "jobs"
        ]
        return found

    def job(self, job: str) -> dict[str, Any]:
        """Return a job with its attempts."""
        found: dict[str, Any] = self._call("GET", f"/v1/jobs/{job}").json()
        return found

    def cancel(self, job: str) -> dict[str, Any]:
        """Cancel a job."""
        found: dict[str, Any] = self._call("DELETE", f"/v1/jobs/{job}").json()
        return found

    def decisions(self, job: str) -> list[dict[str, Any]]:
        """Return the decisions on a job."""
        found: list[dict[str, Any]] = self._call("GET", f"/v1/jobs/{job}/decisions").json()
        return found

    def nodes(self) -> list[dict[str, Any]]:
        """Return all nodes."""
        found: list[dict[str, Any]] = self._call("GET", "/v1/nodes").json()
        return found

    def logs(self, job: str, rank: int, offset: int) -> tuple[bytes, int]:
        """Return what a rank wrote from an offset on, and where to go on."""
        answer = self._call("GET", f"/v1/jobs/{job}/logs", params={"rank": rank, "offset": offset})
        return answer.content, int(answer.headers["Next-Offset"])
