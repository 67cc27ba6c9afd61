"""Calls to a Ray cluster's dashboard, each with a deadline; what comes back is JSON."""

import json
import time
from pathlib import Path

import httpx

from ....cluster.files.errors import BackendError, InputError

DEADLINE_S = 5.0  # of a call; one takes 0.01 s
REST_S = 5.0  # after a missed deadline, in which the next calls fail at once: the scheduler has other work
_MOST_BYTES = 64 << 20


class AnswerError(BackendError):
    """An answer of Ray that is an error.

    Args:
        code: HTTP status.
        message: What it said.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Api:
    """Asks Ray's dashboard.

    Args:
        address: Of the dashboard, such as `http://head:8265`.
        token: File with the token of a cluster that asks for one.
        deadline_s: Of a call.

    Raises:
        InputError: If there is no such file.
    """

    def __init__(self, address: str, token: Path | None, *, deadline_s: float = DEADLINE_S) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {_read_token(token)}"}
        # A call every few seconds needs no connection that stays open. Of the caller's environment, where a proxy could
        # be set, nothing counts.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(base_url=address, headers=headers, limits=limits, trust_env=False)
        self._address, self._deadline_s, self._rest_until_s = address, deadline_s, 0.0

    def get(self, path: str) -> object:
        """Return what is answered to a question.

        Raises:
            AnswerError: If the answer is an error.
            BackendError: If there is none.
        """
        return self._call("GET", path, None)

    def post(self, path: str, content: object) -> object:
        """Return what is answered to a wish, which may be fulfilled even if there is no answer.

        Raises:
            AnswerError: If the answer is an error.
            BackendError: If there is none.
        """
        return self._call("POST", path, content)

    def _call(self, method: str, path: str, content: object) -> object:
        rest_s = self._rest_until_s - time.monotonic()
        if rest_s > 0.0:
            raise BackendError(f"Ray at {self._address} did not answer; it is asked again in {rest_s:.0f} s")
        try:
            status, answer = self._ask(method, path, content)
        except httpx.HTTPError as error:
            self._rest_until_s = time.monotonic() + REST_S
            raise BackendError(f"Ray at {self._address} does not answer: {error or type(error).__name__}") from error
        if status != httpx.codes.OK:
            said = answer.decode(errors="replace").strip().rpartition("\n")[2]
            raise AnswerError(status, f"Ray at {self._address} answered {status} to {path}: {said[:300]}")
        try:
            return json.loads(answer)
        except ValueError as error:
            raise BackendError(f"Ray at {self._address} answered no JSON to {path}: {answer[:80]!r}") from error

    def _ask(self, method: str, path: str, content: object) -> tuple[int, bytes]:
        until_s, answer = time.monotonic() + self._deadline_s, b""
        with self._client.stream(method, path, json=content, timeout=self._deadline_s) as response:
            for piece in response.iter_bytes():
                answer += piece
                if time.monotonic() > until_s or len(answer) > _MOST_BYTES:
                    raise httpx.ReadTimeout(f"no whole answer within {self._deadline_s:g} s")
            return response.status_code, answer


def _read_token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError) as error:
        raise InputError(f"the token of Ray cannot be read: {error}", "name a file that holds it", path=path) from error
