"""Calls to a Kubernetes API server, each with a deadline; what comes back is JSON."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ....cluster.files.errors import BackendError, InputError

MANAGER = "longshore"  # of the fields that we write
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"  # JSON is YAML

Json = dict[str, Any]
Method = Callable[..., Any]  # of the official client


class AnswerError(BackendError):
    """An answer of the API server that is an error.

    Args:
        code: HTTP status.
        message: What it said.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"the API server answered {code}: {message}")
        self.code = code


class Api:
    """The official client, told to hand out JSON and to give up at a deadline.

    Args:
        kubeconfig: How to reach the cluster; the one that this runs in if None.
        deadline_s: Of a call.

    Raises:
        InputError: If the client is not installed, or there is no such cluster.
    """

    def __init__(self, kubeconfig: Path | None, deadline_s: float) -> None:
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise InputError("the Kubernetes client is missing", "pip install 'longshore[kubernetes]'") from error
        configuration = client.Configuration()
        try:
            if kubeconfig is None:
                config.load_incluster_config(configuration)
            else:
                config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        except config.ConfigException as error:
            raise InputError(str(error), "name a kubeconfig, or run it in a pod", path=kubeconfig) from error
        configuration.retries = False  # A deadline is one, and not one for each of several tries.
        configuration.connection_pool_maxsize = 16
        self.deadline_s = deadline_s
        self._client = client.ApiClient(configuration)
        self.core = client.CoreV1Api(self._client)
        self.resource = client.ResourceV1Api(self._client)
        self.coordination = client.CoordinationV1Api(self._client)

    def call(self, method: Method, *args: object, **options: object) -> Json:
        """Make a call and return the object that is answered.

        Raises:
            AnswerError: If the answer is an error.
            BackendError: If there is no answer before the deadline, so that nothing is known.
        """
        content = self.read(method, *args, **options)
        try:
            found = json.loads(content)
        except ValueError as error:
            raise BackendError(f"the API server answered no JSON: {content[:80]!r}") from error
        if not isinstance(found, dict):
            raise BackendError(f"the API server answered no object: {content[:80]!r}")
        return found

    def read(self, method: Method, *args: object, **options: object) -> bytes:
        """Make a call and return the bytes that are answered; the errors are those of `call`."""
        content, whole = self.read_some(method, *args, **options)
        if not whole:
            raise BackendError(f"the API server did not answer whole within {self.deadline_s:g} s")
        return content

    def read_some(self, method: Method, *args: object, **options: object) -> tuple[bytes, bool]:
        """Make a call and return what was answered before the deadline, and whether that is all.

        Raises:
            AnswerError: If the answer is an error.
            BackendError: If there is none.
        """
        until_s = time.monotonic() + self.deadline_s
        pieces = []
        with self.stream(method, *args, read_s=self.deadline_s, **options) as response:
            for piece in response.stream(1 << 16):
                pieces.append(piece)
                if time.monotonic() > until_s:
                    return b"".join(pieces), False
        return b"".join(pieces), True

    @contextmanager
    def stream(self, method: Method, *args: object, read_s: float, **options: object) -> Iterator[Any]:
        """Make a call whose answer comes piece by piece.

        Args:
            method: Of the official client.
            args: For it.
            read_s: How long a piece may take.
            options: For it.

        Raises:
            AnswerError: If the answer is an error.
            BackendError: If no answer comes, or it breaks off.
        """
        import urllib3
        from kubernetes.client.exceptions import ApiException

        response = None
        timeout = (self.deadline_s, read_s)
        try:
            response = method(*args, **options, _preload_content=False, _request_timeout=timeout)
            yield response
        except ApiException as error:
            if not error.status:
                raise BackendError(f"the API server cannot be reached: {error.reason}") from error
            raise AnswerError(error.status, _message(error)) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise BackendError(f"no answer of the API server: {error}") from error
        finally:
            if response is not None:
                response.close()

    def close(self) -> None:
        """End all connections."""
        self._client.close()


def _message(error: Any) -> str:
    """Return what an error answer says, in one line."""
    try:
        said = json.loads(error.body)["message"]
    except (KeyError, TypeError, ValueError):
        said = error.reason
    return " ".join(str(said).split())
