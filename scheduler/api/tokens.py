"""Tokens of users, and links that let one browser in. What is secret of a token is shown once, when it is made."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from ...cluster.files.errors import InputError
from ...cluster.files.input_problems import nearest
from ...cluster.files.yaml_file import ExactTypes
from ..access.browsers import Browsers, link_path
from ..access.tokens import NAME, NAME_WORDS, Caller, Role, check_node, new_token
from ..service.service import Service
from ..store.engines import TakenNameError, TooManyTokensError
from ..store.tokens import MOST_VALID, add_token, revoke_token, tokens_of
from .auth import Asking, Changing, Knowing, Operating, Serving
from .models import NewTokenPage, TokenPage, token_page
from .problems import ProblemError, problems

DAY_S = 86400.0

router = APIRouter()
TokenName = Annotated[str, Field(pattern=NAME, description=NAME_WORDS)]
Owner = Annotated[
    str | None, Query(pattern=NAME, max_length=64, description=f"Somebody else, for operators: {NAME_WORDS}.")
]


class TokenWish(ExactTypes):
    """A token that is wanted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: TokenName
    owner: TokenName | None = None  # the caller if left out; others only for operators
    role: Role = Role.USER
    node: str | None = Field(None, max_length=253)  # that an agent reports on
    days: float | None = Field(None, gt=0.0, le=36500.0)  # until it expires; as long as the caller's if left out


@router.get("/v1/users/me/tokens")
def tokens(service: Serving, caller: Asking, owner: Owner = None) -> list[TokenPage]:
    """List the caller's tokens, those that have expired too."""
    of = _owner(caller, owner)
    with service.store.read() as tx:
        return [token_page(row) for row in tokens_of(tx, of)]


@router.post(
    "/v1/users/me/tokens",
    status_code=201,
    responses=problems("token-exists", "too-many-tokens", "no-such-node", "bad-request", "too-much"),
)
def create(wish: TokenWish, service: Serving, caller: Changing, known: Knowing) -> NewTokenPage:
    """Make a token. This answer alone shows it."""
    owner = _owner(caller, wish.owner)
    if wish.role not in (Role.USER, Role.READ_ONLY) and caller.role is not Role.OPERATOR:
        raise ProblemError("forbidden", f"only an operator makes tokens with the role {wish.role}")
    _check_node(wish, service)
    now_s = service.now_s()
    made = new_token(wish.name, owner, wish.role, now_s, _expires_s(caller, wish.days, now_s), wish.node)
    most = None if caller.role is Role.OPERATOR else MOST_VALID
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
    name: Annotated[str, Path(pattern=NAME, description=NAME_WORDS)],
    service: Serving,
    caller: Changing,
    known: Knowing,
    owner: Owner = None,
) -> Response:
    """Let a token expire at once."""
    of, now_s = _owner(caller, owner), service.now_s()
    if not service.store.write(lambda tx: revoke_token(tx, of, name, now_s)):
        raise ProblemError("no-such-token", f"{of} has no valid token {name!r}")
    known.forget()
    return Response(status_code=204)


def _check_node(wish: TokenWish, service: Service) -> None:
    try:
        check_node(wish.role, wish.node)
    except InputError as error:
        raise ProblemError("invalid", f"node: {error}") from error
    if wish.node is not None and wish.node not in service.layout.nodes:
        known = nearest(wish.node, service.layout.nodes)
        raise ProblemError("no-such-node", f"there is no node {wish.node!r}; {known}")


def _expires_s(caller: Caller, days: float | None, now_s: float) -> float | None:
    """Return when a token ends: no later than the one that makes it."""
    if days is None:
        return caller.expires_s
    wanted_s = now_s + days * DAY_S
    if caller.expires_s is not None and wanted_s > caller.expires_s:
        left = (caller.expires_s - now_s) / DAY_S
        raise ProblemError("forbidden", f"your token ends in {left:.4g} days, and one that it makes ends no later")
    return wanted_s


def _owner(caller: Caller, owner: str | None) -> str:
    """Return whose tokens are meant."""
    if owner not in (None, caller.owner) and caller.role is not Role.OPERATOR:
        raise ProblemError("forbidden", "only an operator handles the tokens of others")
    return owner or caller.owner


class BrowserLink(BaseModel):
    """Where a browser is let in."""

    model_config = ConfigDict(frozen=True)

    path: str  # on this server


async def browsers_of(request: Request) -> Browsers:
    """Return the browsers that an application has let in."""
    browsers: Browsers = request.app.state.browsers
    return browsers


Letting = Annotated[Browsers, Depends(browsers_of)]


@router.post("/v1/browser-links", status_code=201)
async def link(request: Request, service: Serving, _: Operating, browsers: Letting) -> BrowserLink:
    """Make a link that lets one browser in, once and within an hour, as whoever asks."""
    secret = request.headers.get("authorization", "").partition(" ")[2]
    if not secret:
        return BrowserLink(path="/")  # an open scheduler asks nobody
    return BrowserLink(path=link_path(browsers.code_for(secret, service.now_s())))
