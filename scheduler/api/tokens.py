"""Tokens of users, one-time links, and browsers that are logged in. The secret of a token is shown once, when created.

Source: SPEC K8; docs/operate.md, Dashboard.
"""

import secrets
import threading
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from ...cluster.files.errors import InputError
from ...cluster.files.input_problems import name_advice
from ...cluster.files.yaml_file import ExactTypes
from ..access.tokens import (
    MAX_VALID_TOKENS,
    TOKEN_NAME,
    TOKEN_NAME_WORDS,
    Caller,
    Role,
    TokenRow,
    add_token,
    check_node,
    new_token,
    revoke_token,
    tokens_of,
)
from ..service.service import Service
from ..store.database import TakenNameError, TooManyTokensError
from .auth import LOCAL_OPERATOR, Operator, Reader, ServiceDep, TokenCacheDep, Writer
from .problems import ProblemError, openapi_problems

DAY_S = 86400.0

router = APIRouter()
TokenName = Annotated[str, Field(pattern=TOKEN_NAME, description=TOKEN_NAME_WORDS)]
Owner = Annotated[
    str | None,
    Query(pattern=TOKEN_NAME, max_length=64, description=f"Another owner, for operators: {TOKEN_NAME_WORDS}."),
]


class TokenRequest(ExactTypes):
    """A token to create."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: TokenName
    owner: TokenName | None = None  # default: the caller; others only for operators
    role: Role = Role.USER
    node: str | None = Field(None, max_length=253)  # of an agent
    days: float | None = Field(None, gt=0.0, le=36500.0)  # until it expires; default: as the caller's


class TokenPage(BaseModel):
    """A token without its secret."""

    name: str
    owner: str
    role: str
    node: str | None  # that an agent reports on
    made_s: float
    expires_s: float | None  # 0 if it was revoked
    used_s: float | None


class NewTokenPage(TokenPage):
    """A new token, with its secret."""

    token: str  # never shown again


def token_page(row: TokenRow) -> TokenPage:
    """Return a token."""
    return TokenPage(**{name: getattr(row, name) for name in TokenPage.model_fields})


@router.get("/v1/users/me/tokens")
def tokens(service: ServiceDep, caller: Reader, owner: Owner = None) -> list[TokenPage]:
    """List the caller's tokens, including expired ones."""
    of = _owner_of_tokens(caller, owner)
    with service.store.read() as tx:
        return [token_page(row) for row in tokens_of(tx, of)]


@router.post(
    "/v1/users/me/tokens",
    status_code=201,
    responses=openapi_problems("token-exists", "too-many-tokens", "no-such-node", "bad-request", "too-much"),
)
def create_token(body: TokenRequest, service: ServiceDep, caller: Writer, known: TokenCacheDep) -> NewTokenPage:
    """Create a token. Only this answer shows it."""
    owner = _owner_of_tokens(caller, body.owner)
    if body.role not in (Role.USER, Role.READ_ONLY) and caller.role is not Role.OPERATOR:
        raise ProblemError("forbidden", f"only an operator makes tokens with the role {body.role}")
    _check_node(body, service)
    now_s = service.now_s()
    made = new_token(body.name, owner, body.role, now_s, _expires_s(caller, body.days, now_s), body.node)
    most = None if caller.role is Role.OPERATOR else MAX_VALID_TOKENS
    try:
        service.store.write(lambda tx: add_token(tx, made.row, most))
    except TakenNameError as error:
        raise ProblemError("token-exists", str(error)) from error
    except TooManyTokensError as error:
        raise ProblemError("too-many-tokens", str(error)) from error
    known.forget()
    return NewTokenPage(**token_page(made.row).model_dump(), token=made.secret)


@router.delete("/v1/users/me/tokens/{name}", status_code=204, responses=openapi_problems("no-such-token"))
def revoke_token_of(
    name: Annotated[str, Path(pattern=TOKEN_NAME, description=TOKEN_NAME_WORDS)],
    service: ServiceDep,
    caller: Writer,
    known: TokenCacheDep,
    owner: Owner = None,
) -> Response:
    """Revoke a token at once."""
    of, now_s = _owner_of_tokens(caller, owner), service.now_s()
    if not service.store.write(lambda tx: revoke_token(tx, of, name, now_s)):
        raise ProblemError("no-such-token", f"{of} has no valid token {name!r}")
    known.forget()
    return Response(status_code=204)


def _check_node(body: TokenRequest, service: Service) -> None:
    try:
        check_node(body.role, body.node)
    except InputError as error:
        raise ProblemError("invalid", f"node: {error}") from error
    if body.node is not None and body.node not in service.layout.nodes:
        known = name_advice(body.node, service.layout.nodes)
        raise ProblemError("no-such-node", f"there is no node {body.node!r}; {known}")


def _expires_s(caller: Caller, days: float | None, now_s: float) -> float | None:
    """Return when a token expires: no later than the one that creates it."""
    if days is None:
        return caller.expires_s
    wanted_s = now_s + days * DAY_S
    if caller.expires_s is not None and wanted_s > caller.expires_s:
        left = (caller.expires_s - now_s) / DAY_S
        raise ProblemError("forbidden", f"your token ends in {left:.4g} days, and one that it makes ends no later")
    return wanted_s


def _owner_of_tokens(caller: Caller, owner: str | None) -> str:
    """Return the owner of the tokens."""
    if owner not in (None, caller.owner) and caller.role is not Role.OPERATOR:
        raise ProblemError("forbidden", "only an operator handles the tokens of others")
    return owner or caller.owner


MAX_BROWSERS = 1000  # logged in at a time, and links; the oldest end first
CODE_S = 3600.0  # lifetime of a link
BROWSER_S = 7 * 86400.0  # after which a browser needs the token again


class Browsers:
    """Browsers that are logged in, and links. Safe for threads.

    A browser keeps a number, and a link has a code, in the token's place: neither is valid for the API. Both expire,
    and end with the scheduler.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, tuple[str, float]] = {}  # by number: a token, and the Unix time at which its use ends
        self._codes: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def let_in(self, token: str, now_s: float) -> str:
        """Log a browser in, and return its number."""
        return self._add(self._tokens, token, now_s + BROWSER_S)

    def token_of(self, number: str, now_s: float) -> str | None:
        """Return the token of a browser, None if it is not logged in or has expired."""
        with self._lock:
            token, ends_s = self._tokens.get(number, ("", now_s))
        return token if ends_s > now_s else None

    def leave(self, number: str) -> None:
        """Log a browser out."""
        with self._lock:
            self._tokens.pop(number, None)

    def code_for(self, token: str, now_s: float) -> str:
        """Return the code of a link that logs one browser in."""
        return self._add(self._codes, token, now_s + CODE_S)

    def use(self, code: str, now_s: float) -> str | None:
        """Return the token of a code, once; None if it was used or has expired."""
        with self._lock:
            token, ends_s = self._codes.pop(code, ("", now_s))
        return token if ends_s > now_s else None

    def _add(self, known: dict[str, tuple[str, float]], token: str, ends_s: float) -> str:
        name = secrets.token_urlsafe(32)
        with self._lock:
            if len(known) >= MAX_BROWSERS:
                del known[next(iter(known))]
            known[name] = token, ends_s
        return name


def link_path(code: str) -> str:
    """Return the path that logs a browser in by a code."""
    return f"/login?code={code}"


async def browsers_of(request: Request) -> Browsers:
    """Return the browsers that are logged in."""
    browsers: Browsers = request.app.state.browsers
    return browsers


BrowsersDep = Annotated[Browsers, Depends(browsers_of)]


@router.post("/v1/browser-links", status_code=201)
async def create_browser_link(
    request: Request, service: ServiceDep, caller: Operator, browsers: BrowsersDep
) -> dict[str, str]:
    """Create a link that logs one browser in as the caller, once and within an hour; `path` is on this server."""
    if caller is LOCAL_OPERATOR:
        return {"path": "/"}  # an open scheduler needs no token, and the request may have one of another scheduler
    secret = request.headers.get("authorization", "").partition(" ")[2]
    return {"path": link_path(browsers.code_for(secret, service.now_s()))}
