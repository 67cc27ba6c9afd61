"""A bound on what a request may send, before anything is made of it."""

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import Answer

MOST_BYTES = 256 * 1024


class BodyLimit:
    """Reads the body of a request, and refuses one that is too large.

    Args:
        app: What answers.
        answer: Returns the answer that tells an error.
    """

    def __init__(self, app: ASGIApp, answer: Answer) -> None:
        self._app, self._answer = app, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        try:
            body = await _body(receive)
        except _GoneError:
            return
        if body is None:
            detail = f"the body is larger than {MOST_BYTES // 1024} KiB"
            await self._answer(Request(scope), "too-much", detail)(scope, receive, send)
            return
        read = False

        async def again() -> Message:
            nonlocal read
            if read:
                return await receive()
            read = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, again, send)


class _GoneError(Exception):
    """The client went before it had sent all."""


async def _body(receive: Receive) -> bytes | None:
    """Return all that a client sends, None if it is too much."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise _GoneError
        more = message.get("more_body", False)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MOST_BYTES:
            return None
    return b"".join(parts)
