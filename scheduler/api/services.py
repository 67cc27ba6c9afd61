"""What endpoints work with, as dependencies: the scheduler, and who asks."""

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request

from ..service import Service
from ..settings import is_loopback
from ..store.user_tokens import find_token, has_tokens, use_token
from ..tokens import Caller, Role, caller_of, digest_of
from .problems import ProblemError

NOBODY_ELSE = Caller("local", Role.OPERATOR)  # who asks a scheduler that only this machine can ask, and knows no tokens
USED_S = 60.0  # the last use of a token is known to so much


async def service_of(request: Request) -> Service:
    """Return the scheduler that an application serves."""
    service: Service = request.app.state.service
    return service


Serving = Annotated[Service, Depends(service_of)]


def who_asks(request: Request, service: Serving) -> Caller:
    """Return who asks, by the token of the request.

    Raises:
        ProblemError: If it has none that is valid.
    """
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if not secret:
        return _without_token(request, service)
    if scheme.lower() != "bearer":
        raise ProblemError("unauthorized", "only `Authorization: Bearer TOKEN` is known")
    now_s = service.now_s()
    with service.store.read() as tx:
        row = find_token(tx, digest_of(secret))
    caller = caller_of(row, secret, now_s)
    if row is None or caller is None:
        raise ProblemError("unauthorized", "the token is not known, was revoked, or has expired")
    if row.used_s is None or now_s - row.used_s > USED_S:
        service.store.write(lambda tx: use_token(tx, row.digest, now_s))
    return caller


def _without_token(request: Request, service: Service) -> Caller:
    if not service.settings.is_loopback or _asks_for_tokens(request, service):
        raise ProblemError("unauthorized", "this scheduler asks for a token: send `Authorization: Bearer TOKEN`")
    # A page of some website must not submit jobs through the browser of whoever looks at it: not under a name of its
    # own that it lets point to this machine, and not from its own origin.
    origin = request.headers.get("origin")
    if not is_loopback(request.url.hostname or "") or (origin and not is_loopback(urlsplit(origin).hostname or "")):
        raise ProblemError("wrong-host", "without tokens, only http://127.0.0.1 and http://localhost are served")
    return NOBODY_ELSE


def _asks_for_tokens(request: Request, service: Service) -> bool:
    """Say whether there is a token; once there is one, there always will be."""
    state = request.app.state
    if not state.has_tokens:
        with service.store.read() as tx:
            state.has_tokens = has_tokens(tx)
    return bool(state.has_tokens)


Asking = Annotated[Caller, Depends(who_asks)]


async def who_changes(caller: Asking) -> Caller:
    """Return who asks, if they may change anything.

    Raises:
        ProblemError: If they may only read.
    """
    if caller.role is Role.READ_ONLY:
        raise ProblemError("forbidden", "a token with the role read-only changes nothing")
    return caller


Changing = Annotated[Caller, Depends(who_changes)]


async def who_operates(caller: Asking) -> Caller:
    """Return who asks, if they are an operator.

    Raises:
        ProblemError: If they are not.
    """
    if caller.role is not Role.OPERATOR:
        raise ProblemError("forbidden", "this takes a token with the role operator")
    return caller


Operating = Annotated[Caller, Depends(who_operates)]
