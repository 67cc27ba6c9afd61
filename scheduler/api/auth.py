"""Dependencies of endpoints: the scheduler, the caller of a request, and a cache of tokens."""

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from ..access.token_file import is_loopback
from ..access.tokens import Caller, Role, TokenRow, caller_of, digest_of, find_token, has_tokens, record_token_use
from ..service.service import Service
from ..store.database import StoreUnreachableError
from .problems import ProblemError

TOKEN_FRESH_S = 1.0  # within which a token revoked by another process is refused
# For which what was last read of a token counts while the store does not answer. Leases of nodes must not run out for
# want of a token: a scheduler surely leads for 15 s more, and a lease lasts for 10 s.
TOKEN_KEPT_S = 60.0
TOKEN_USE_STEP_S = 60.0  # resolution of the last use of a token
MAX_CACHED_TOKENS = 10_000  # tokens


class TokenCache:
    """Tokens read a moment ago, and whether the store has any. Safe for threads.

    It lags by `TOKEN_FRESH_S`, and by `TOKEN_KEPT_S` while the store does not answer.
    """

    def __init__(self) -> None:
        self._rows: dict[str, tuple[TokenRow, float]] = {}  # by digest, with the moment of reading
        self._reading: set[str] = set()  # digests of those that are being read
        self._has_tokens = False
        self._read_s = float("-inf")

    def row_of(self, secret: str) -> TokenRow | None:
        """Return a token if it was read a moment ago."""
        return self._row_read_within(digest_of(secret), TOKEN_FRESH_S)

    def _row_read_within(self, digest: str, age_s: float) -> TokenRow | None:
        row, read = self._rows.get(digest, (None, float("-inf")))
        return row if time.monotonic() - read < age_s else None

    def read(self, service: Service, secret: str) -> TokenRow | None:
        """Read a token from the store, None if there is none, and record its use. Blocks.

        A store that hangs may block for a minute. Other requests with the token then get what was read lately.

        Raises:
            StoreUnreachableError: If the store does not answer, and the token was not read lately.
        """
        digest = digest_of(secret)
        if digest in self._reading and (kept := self._row_read_within(digest, TOKEN_KEPT_S)) is not None:
            return kept
        self._reading.add(digest)
        try:
            return self._read_from_store(service, digest)
        finally:
            self._reading.discard(digest)

    def _read_from_store(self, service: Service, digest: str) -> TokenRow | None:
        now_s = service.now_s()
        try:
            with service.store.read() as tx:
                row = find_token(tx, digest)
        except StoreUnreachableError:
            if (kept := self._row_read_within(digest, TOKEN_KEPT_S)) is None:
                raise
            return kept
        if row is None:
            self._rows.pop(digest, None)
            return None
        is_valid = row.expires_s is None or row.expires_s > now_s
        if is_valid and (row.used_s is None or now_s - row.used_s > TOKEN_USE_STEP_S):
            # A request succeeds although its use cannot be recorded, such as on a full disk.
            with suppress(StoreUnreachableError):
                service.store.write(lambda tx: record_token_use(tx, digest, now_s))
        if len(self._rows) >= MAX_CACHED_TOKENS:
            self._rows.clear()
        self._rows[digest] = row, time.monotonic()
        return row

    def has_tokens(self) -> bool | None:
        """Return whether there are tokens, None if unknown. Once there are, there always will be."""
        return self._has_tokens if self._has_tokens or time.monotonic() - self._read_s < TOKEN_FRESH_S else None

    def read_has_tokens(self, service: Service) -> bool:
        """Read whether there are tokens. Blocks.

        Raises:
            StoreUnreachableError: If the store does not answer, and this was not read lately.
        """
        try:
            with service.store.read() as tx:
                self._has_tokens = self._has_tokens or has_tokens(tx)
        except StoreUnreachableError:
            if time.monotonic() - self._read_s >= TOKEN_KEPT_S:
                raise
            return self._has_tokens
        self._read_s = time.monotonic()
        return self._has_tokens

    def forget(self) -> None:
        """Forget all, as tokens have changed."""
        self._rows.clear()
        self._read_s = float("-inf")


LOCAL_OPERATOR = Caller("local", Role.OPERATOR)  # the caller of an open scheduler without tokens


async def service_of(request: Request) -> Service:
    """Return the scheduler that an application serves."""
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(service_of)]


def check_leads(service: Service) -> None:
    """Refuse a request about what only the leader has in memory.

    Raises:
        ProblemError: If another scheduler leads.
    """
    if service.control.another_leads:
        raise ProblemError("not-ready", "another scheduler of the store leads: send this to that one", Retry_After="1")


async def token_cache_of(request: Request) -> TokenCache:
    """Return the token cache of an application."""
    known: TokenCache = request.app.state.known
    return known


TokenCacheDep = Annotated[TokenCache, Depends(token_cache_of)]


async def caller_of_request(request: Request, service: ServiceDep, known: TokenCacheDep) -> Caller:
    """Return the caller, by the token of the request.

    Raises:
        ProblemError: If it has no valid token.
    """
    header = request.headers.get("authorization")
    if header is None:
        await _check_without_token(request, service, known)
        return LOCAL_OPERATOR
    scheme, _, secret = header.partition(" ")
    if scheme.lower() != "bearer" or not secret:
        raise ProblemError("unauthorized", "only `Authorization: Bearer TOKEN` is accepted")
    try:
        return await caller_with(secret, service, known)
    except ProblemError:
        if not service.is_open or await _has_tokens(service, known):
            raise
    # The token is of another scheduler, such as an earlier one at this port: treated like no token.
    await _check_without_token(request, service, known)
    return LOCAL_OPERATOR


async def caller_with(secret: str, service: Service, known: TokenCache) -> Caller:
    """Return the caller of a token.

    Raises:
        ProblemError: If it is not valid.
    """
    row = known.row_of(secret)
    if row is None:
        row = await run_in_threadpool(known.read, service, secret)
    caller = caller_of(row, secret, service.now_s())
    if caller is None:
        why = "the token is unknown" if row is None else f"the token {row.name!r} has expired or was revoked"
        raise ProblemError("unauthorized", why)
    return caller


async def _check_without_token(request: Request, service: Service, known: TokenCache) -> None:
    """Accept requests without a token from this machine alone, to an open scheduler without tokens.

    A website must not submit jobs through the browser of a visitor: neither under a host name that it points to this
    machine (DNS rebinding), nor from its own origin, which may be another port of this machine.
    """
    if not service.is_open or await _has_tokens(service, known):
        raise ProblemError("unauthorized", "this scheduler needs a token: send `Authorization: Bearer TOKEN`")
    if not is_loopback(_host_of(request)) or not is_same_origin(request):
        raise ProblemError("wrong-host", "without tokens, only pages and programs of this address are served")


async def _has_tokens(service: Service, known: TokenCache) -> bool:
    found = known.has_tokens()
    return await run_in_threadpool(known.read_has_tokens, service) if found is None else found


def _host_of(request: Request) -> str:
    """Return the host of a request, without the port."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def is_same_origin(request: Request) -> bool:
    """Return whether a request is of a program, or of the scheduler's own pages: the same host and port."""
    origin, host = request.headers.get("origin"), request.headers.get("host")
    return origin in (None, f"http://{host}", f"https://{host}")


AnyCaller = Annotated[Caller, Depends(caller_of_request)]


async def reader_of_request(caller: AnyCaller) -> Caller:
    """Return the caller, unless it is an agent or Prometheus.

    Raises:
        ProblemError: If it is.
    """
    if caller.role in (Role.AGENT, Role.SCRAPE):
        raise ProblemError("forbidden", f"a token with the role {caller.role} may not read this")
    return caller


Reader = Annotated[Caller, Depends(reader_of_request)]


async def writer_of_request(caller: Reader) -> Caller:
    """Return the caller, unless it may only read.

    Raises:
        ProblemError: If it may.
    """
    if caller.role is Role.READ_ONLY:
        raise ProblemError("forbidden", f"a token with the role {caller.role} may only read")
    return caller


Writer = Annotated[Caller, Depends(writer_of_request)]


def _caller_with_role(*roles: Role) -> Callable[[Caller], Awaitable[Caller]]:
    async def checked(caller: AnyCaller) -> Caller:
        if caller.role not in roles:
            raise ProblemError("forbidden", f"this needs a token with the role {' or '.join(roles)}")
        return caller

    return checked


Operator = Annotated[Caller, Depends(_caller_with_role(Role.OPERATOR))]
Reporter = Annotated[
    Caller, Depends(_caller_with_role(Role.AGENT, Role.OPERATOR))
]  # on nodes; an agent only on its own
Scraper = Annotated[Caller, Depends(_caller_with_role(Role.SCRAPE, Role.OPERATOR))]  # metrics cover all jobs
