"""What endpoints depend on: the scheduler, the user of a request, and tokens read recently."""

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from ..access.browsers import is_loopback
from ..access.tokens import Caller, Role, caller_of, digest_of
from ..service.service import Service
from ..store.engines import StoreUnreachableError
from ..store.tokens import TokenRow, find_token, has_tokens, use_token
from .problems import ProblemError

FRESH_S = 1.0  # a token that is revoked from outside is refused after so long at the latest
USED_S = 60.0  # the last use of a token is known to so much
MOST = 10_000  # tokens


class Known:
    """Tokens that were shown a moment ago, and whether there are any. Any thread may use it: it only lags a bit."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[TokenRow, float]] = {}  # by digest, with the moment of reading
        self._guards = False
        self._asked = float("-inf")

    def row_of(self, secret: str) -> TokenRow | None:
        """Return a token that was read a moment ago, None if it was not."""
        row, read = self._rows.get(digest_of(secret), (None, float("-inf")))
        return row if time.monotonic() - read < FRESH_S else None

    def read(self, service: Service, secret: str) -> TokenRow | None:
        """Read a token from the store, None if there is none; writes down that it is used. Blocks."""
        digest, now_s = digest_of(secret), service.now_s()
        with service.store.read() as tx:
            row = find_token(tx, digest)
        if row is None:
            return None
        is_valid = row.expires_s is None or row.expires_s > now_s
        if is_valid and (row.used_s is None or now_s - row.used_s > USED_S):
            # Nobody is refused because that cannot be written, as where the disk is full.
            with suppress(StoreUnreachableError):
                service.store.write(lambda tx: use_token(tx, digest, now_s))
        if len(self._rows) >= MOST:
            self._rows.clear()
        self._rows[digest] = row, time.monotonic()
        return row

    def guards(self) -> bool | None:
        """Say whether there are tokens, None if that was not read lately. Once there are, there always will be."""
        return self._guards if self._guards or time.monotonic() - self._asked < FRESH_S else None

    def read_guards(self, service: Service) -> bool:
        """Read whether there are tokens. Blocks."""
        with service.store.read() as tx:
            self._guards = self._guards or has_tokens(tx)
        self._asked = time.monotonic()
        return self._guards

    def forget(self) -> None:
        """Forget all: tokens were changed here."""
        self._rows.clear()
        self._asked = float("-inf")


NOBODY_ELSE = Caller("local", Role.OPERATOR)  # who asks an open scheduler without tokens


async def service_of(request: Request) -> Service:
    """Return the scheduler that an application serves."""
    service: Service = request.app.state.service
    return service


Serving = Annotated[Service, Depends(service_of)]


async def known_of(request: Request) -> Known:
    """Return what an application knows of tokens."""
    known: Known = request.app.state.known
    return known


Knowing = Annotated[Known, Depends(known_of)]


async def who_asks(request: Request, service: Serving, known: Knowing) -> Caller:
    """Return who asks, by the token of the request.

    Raises:
        ProblemError: If it has none that is valid.
    """
    header = request.headers.get("authorization")
    if header is None:
        await _without_token(request, service, known)
        return NOBODY_ELSE
    scheme, _, secret = header.partition(" ")
    if scheme.lower() != "bearer" or not secret:
        raise ProblemError("unauthorized", "only `Authorization: Bearer TOKEN` is known")
    try:
        return await caller_with(secret, service, known)
    except ProblemError:
        if not service.is_open or await _has_tokens(service, known):
            raise
    # The token is of another scheduler, as of one that was at this port before. It is worth what none is worth.
    await _without_token(request, service, known)
    return NOBODY_ELSE


async def caller_with(secret: str, service: Service, known: Known) -> Caller:
    """Return whose token it is.

    Raises:
        ProblemError: If it is not valid.
    """
    row = known.row_of(secret)
    if row is None:
        row = await run_in_threadpool(known.read, service, secret)
    caller = caller_of(row, secret, service.now_s())
    if caller is None:
        told = "the token is not known here" if row is None else f"the token {row.name!r} has expired or was revoked"
        raise ProblemError("unauthorized", told)
    return caller


async def _without_token(request: Request, service: Service, known: Known) -> None:
    """Let only this machine ask an open scheduler without a token, and only while there is none.

    A page of some website must not submit jobs through the browser of whoever looks at it: not under a name of its own
    that it lets point to this machine, and not from its own origin, which may be another port of this machine.
    """
    if not service.is_open or await _has_tokens(service, known):
        raise ProblemError("unauthorized", "this scheduler asks for a token: send `Authorization: Bearer TOKEN`")
    if not is_loopback(_host_of(request)) or not has_own_origin(request):
        raise ProblemError("wrong-host", "without tokens, only pages and programs of this address are served")


async def _has_tokens(service: Service, known: Known) -> bool:
    guards = known.guards()
    return await run_in_threadpool(known.read_guards, service) if guards is None else guards


def _host_of(request: Request) -> str:
    """Return the name that a request asks for, without the port."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def has_own_origin(request: Request) -> bool:
    """Say whether a request is of no website, or of the scheduler's own pages: the same host and port."""
    origin, host = request.headers.get("origin"), request.headers.get("host")
    return origin in (None, f"http://{host}", f"https://{host}")


Anybody = Annotated[Caller, Depends(who_asks)]


async def who_sees(caller: Anybody) -> Caller:
    """Return who asks, if they are a person: agents and Prometheus do one thing each.

    Raises:
        ProblemError: If they are not.
    """
    if caller.role in (Role.AGENT, Role.SCRAPE):
        raise ProblemError("forbidden", f"a token with the role {caller.role} sees nothing here")
    return caller


Asking = Annotated[Caller, Depends(who_sees)]


async def who_changes(caller: Asking) -> Caller:
    """Return who asks, if they may change anything.

    Raises:
        ProblemError: If they may only read.
    """
    if caller.role is Role.READ_ONLY:
        raise ProblemError("forbidden", f"a token with the role {caller.role} changes nothing here")
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


def _one_of(*roles: Role) -> Callable[[Caller], Awaitable[Caller]]:
    async def who(caller: Anybody) -> Caller:
        if caller.role not in roles:
            raise ProblemError("forbidden", f"this takes a token with the role {' or '.join(roles)}")
        return caller

    return who


Reporting = Annotated[Caller, Depends(_one_of(Role.AGENT, Role.OPERATOR))]  # on nodes; an agent only on its own
Scraping = Annotated[Caller, Depends(_one_of(Role.SCRAPE, Role.OPERATOR))]  # metrics tell of all jobs
