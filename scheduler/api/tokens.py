"""Tokens of users, and one-time links for browsers. The secret of a token is shown once, when it is made."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from ...cluster.files.errors import InputError
from ...cluster.files.input_problems import nearest
from ...cluster.files.yaml_file import ExactTypes
from ..access.browsers import Browsers, link_path
from ..access.tokens import (
    MAX_VALID_TOKENS,
    TOKEN_NAME,
    TOKEN_NAME_WORDS,
    Caller,
    Role,
    add_token,
    check_node,
    new_token,
    revoke_token,
    tokens_of,
)
from ..service.service import Service
from ..store.database import TakenNameError, TooManyTokensError
from .auth import Operator, Reader, ServiceDep, TokenCacheDep, Writer
from .models import NewTokenPage, TokenPage, token_page
from .problems import ProblemError, problems

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


@router.get("/v1/users/me/tokens")
def tokens(service: ServiceDep, caller: Reader, owner: Owner = None) -> list[TokenPage]:
    """List the caller's tokens, including expired ones."""
    of = _owner(caller, owner)
    with service.store.read() as tx:
        return [token_page(row) for row in tokens_of(tx, of)]


@router.post(
    "/v1/users/me/tokens",
    status_code=201,
    responses=problems("token-exists", "too-many-tokens", "no-such-node", "bad-request", "too-much"),
)
def create(body: TokenRequest, service: ServiceDep, caller: Writer, known: TokenCacheDep) -> NewTokenPage:
    """Create a token. Only this answer shows it."""
    owner = _owner(caller, body.owner)
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


@router.delete("/v1/users/me/tokens/{name}", status_code=204, responses=problems("no-such-token"))
def revoke(
    name: Annotated[str, Path(pattern=TOKEN_NAME, description=TOKEN_NAME_WORDS)],
    service: ServiceDep,
    caller: Writer,
    known: TokenCacheDep,
    owner: Owner = None,
) -> Response:
    """Revoke a token at once."""
    of, now_s = _owner(caller, owner), service.now_s()
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
        known = nearest(body.node, service.layout.nodes)
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


def _owner(caller: Caller, owner: str | None) -> str:
    """Return the owner of the tokens."""
    if owner not in (None, caller.owner) and caller.role is not Role.OPERATOR:
        raise ProblemError("forbidden", "only an operator handles the tokens of others")
    return owner or caller.owner


class BrowserLink(BaseModel):
    """A link for a browser."""

    model_config = ConfigDict(frozen=True)

    path: str  # on this server


async def browsers_of(request: Request) -> Browsers:
    """Return the browsers that are logged in."""
    browsers: Browsers = request.app.state.browsers
    return browsers


BrowsersDep = Annotated[Browsers, Depends(browsers_of)]


@router.post("/v1/browser-links", status_code=201)
async def link(request: Request, service: ServiceDep, _: Operator, browsers: BrowsersDep) -> BrowserLink:
    """Create a link that logs one browser in as the caller, once and within an hour."""
    secret = request.headers.get("authorization", "").partition(" ")[2]
    if not secret:
        return BrowserLink(path="/")  # an open scheduler needs no token
    return BrowserLink(path=link_path(browsers.code_for(secret, service.now_s())))
