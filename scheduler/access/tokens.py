"""Tokens of users, their roles, and the token that the first start of a scheduler creates.

Only digests of tokens are stored. A revoked one stays, so that a store once guarded stays so. Of an owner's that have
expired, only the last are kept.

Source: SPEC K8; docs/security.md.
"""

import hashlib
import hmac
import re
import secrets
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, func, insert, or_, select, update

from ...cluster.files.errors import InputError
from ..store.database import Store, TakenNameError, TooManyTokensError
from ..store.schema import user_token
from .token_file import FILE, read_token, restrict_to_owner, write_token

MAX_VALID_TOKENS = 100  # tokens that an owner makes for himself
MAX_EXPIRED_TOKENS = 100  # tokens of an owner, the last that expired
REVOKED_S = 0.0  # end of a revoked token: by every clock it has passed, also after one is set back


class TokenRow(NamedTuple):
    """A token."""

    digest: str  # SHA-256 in hexadecimal
    name: str
    owner: str
    role: str
    made_s: float  # Unix time
    expires_s: float | None  # Unix time, None for never; `REVOKED_S` if it was revoked
    used_s: float | None = None  # Unix time of its last use
    node: str | None = None  # that the token of an agent is for


_VALID = or_(user_token.c.expires_s.is_(None), user_token.c.expires_s > bindparam("now_s"))
_INSERT_TOKEN = insert(user_token)
_TOKENS = select(*(user_token.c[name] for name in TokenRow._fields))
_ONE_TOKEN = _TOKENS.where(user_token.c.digest == bindparam("of_digest"))
_ALL_TOKENS = _TOKENS.order_by(user_token.c.owner, user_token.c.made_s)
_TOKENS_OF_OWNER = _ALL_TOKENS.where(user_token.c.owner == bindparam("of_owner"))
_NAMED = _TOKENS_OF_OWNER.where(user_token.c.name == bindparam("of_name"), _VALID)
_WITHOUT_NODE = _ALL_TOKENS.where(user_token.c.role == bindparam("of_role"), user_token.c.node.is_(None), _VALID)
_COUNT_TOKENS = select(func.count()).where(user_token.c.owner == bindparam("of_owner"), _VALID)
_LONG_EXPIRED = (
    select(user_token.c.digest)
    .where(user_token.c.owner == bindparam("of_owner"), user_token.c.expires_s <= bindparam("now_s"))
    .order_by(user_token.c.expires_s.desc(), user_token.c.made_s.desc())
    .offset(MAX_EXPIRED_TOKENS)
)
_DELETE_EXPIRED = delete(user_token).where(user_token.c.digest.in_(_LONG_EXPIRED))
_ANY = select(user_token.c.digest).limit(1)
_ANY_VALID = _ANY.where(_VALID)
_USE = update(user_token).where(user_token.c.digest == bindparam("of_digest")).values(used_s=bindparam("at_s"))
_REVOKE = (
    update(user_token)
    .where(user_token.c.owner == bindparam("of_owner"), user_token.c.name == bindparam("of_name"), _VALID)
    .values(expires_s=REVOKED_S)
)


def add_token(tx: Connection, row: TokenRow, most: int | None = None) -> None:
    """Store a token, and forget those of its owner that expired long ago.

    Args:
        tx: Transaction.
        row: The token.
        most: Valid tokens that its owner may have then; None for any number.

    Raises:
        TakenNameError: If its owner has a valid one with its name.
        TooManyTokensError: If its owner has as many as are allowed.
    """
    its = {"of_owner": row.owner, "now_s": row.made_s}
    if tx.execute(_NAMED, {**its, "of_name": row.name}).first() is not None:
        raise TakenNameError(f"{row.owner} has a token {row.name!r}; revoke it, or choose another name")
    if most is not None and tx.execute(_COUNT_TOKENS, its).scalar_one() >= most:
        raise TooManyTokensError(f"{row.owner} has {most} valid tokens; revoke one first")
    tx.execute(_INSERT_TOKEN, row._asdict())
    tx.execute(_DELETE_EXPIRED, its)


def find_token(tx: Connection, digest: str) -> TokenRow | None:
    """Return the token with a digest, expired or not; None if there is none."""
    row = tx.execute(_ONE_TOKEN, {"of_digest": digest}).first()
    return None if row is None else TokenRow._make(row)


def tokens_of(tx: Connection, owner: str | None) -> list[TokenRow]:
    """Return the tokens of an owner, or of all, expired ones too, the oldest of each owner first."""
    rows = tx.execute(_ALL_TOKENS) if owner is None else tx.execute(_TOKENS_OF_OWNER, {"of_owner": owner})
    return [TokenRow._make(row) for row in rows]


def has_tokens(tx: Connection) -> bool:
    """Return whether any token was ever made."""
    return tx.execute(_ANY).first() is not None


def has_valid_tokens(tx: Connection, now_s: float) -> bool:
    """Return whether there is any token."""
    return tx.execute(_ANY_VALID, {"now_s": now_s}).first() is not None


def agent_tokens_without_node(tx: Connection, role: str, now_s: float) -> list[TokenRow]:
    """Return the valid tokens of a role that are for no node, by owner."""
    rows = tx.execute(_WITHOUT_NODE, {"of_role": role, "now_s": now_s})
    return [TokenRow._make(row) for row in rows]


def record_token_use(tx: Connection, digest: str, at_s: float) -> None:
    """Write down when a token was used."""
    tx.execute(_USE, {"of_digest": digest, "at_s": at_s})


def revoke_token(tx: Connection, owner: str, name: str, now_s: float) -> bool:
    """Revoke the token of an owner with a name if it is valid at a Unix time, and return whether there was one."""
    return tx.execute(_REVOKE, {"of_owner": owner, "of_name": name, "now_s": now_s}).rowcount > 0


TOKEN_PREFIX = "ls_"
BITS = 256
TOKEN_NAME = r"^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$"  # of owners and of tokens
TOKEN_NAME_WORDS = "1 to 64 small letters, digits, and ., _ or - inside"


class Role(StrEnum):
    """The rights of a token."""

    USER = "user"  # submit jobs, and see and change the own ones
    OPERATOR = "operator"  # see and change all jobs, and give tokens to others
    READ_ONLY = "read-only"  # see the own jobs
    AGENT = "agent"  # report on one node, and nothing else
    SCRAPE = "scrape"  # read the metrics, and nothing else


class Caller(NamedTuple):
    """The caller of a request."""

    owner: str
    role: Role
    node: str | None = None  # of an agent
    expires_s: float | None = None  # Unix time at which the token ends, None for never


class NewToken(NamedTuple):
    """A new token; its secret is not stored."""

    secret: str
    row: TokenRow


def check_name(name: str) -> str:
    """Return a name that an owner or a token can have.

    Raises:
        InputError: If it cannot.
    """
    if re.fullmatch(TOKEN_NAME, name) is None:
        raise InputError(f"{name!r} cannot be a name", f"write {TOKEN_NAME_WORDS}")
    return name


def check_node(role: Role, node: str | None) -> None:
    """Refuse a token of an agent that is for no node, and one of another role that is.

    Raises:
        InputError: With what to write.
    """
    if role is Role.AGENT and not node:
        raise InputError("an agent's token is for one node", "name it: --node NODE")
    if role is not Role.AGENT and node is not None:
        raise InputError(f"a token with the role {role} is for no node", "leave --node out, or write --role agent")


def new_token(
    name: str, owner: str, role: Role, made_s: float, expires_s: float | None, node: str | None = None
) -> NewToken:
    """Return a new, unique token, refused from `expires_s` on (Unix time; None for never); only an agent has a node."""
    secret = TOKEN_PREFIX + secrets.token_urlsafe(BITS // 8)
    return NewToken(secret, TokenRow(digest_of(secret), name, owner, role.value, made_s, expires_s, node=node))


def digest_of(secret: str) -> str:
    """Return what is stored of a token; of 256 random bits no salt is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def caller_of(row: TokenRow | None, secret: str, now_s: float) -> Caller | None:
    """Return the caller with a token, None if it is wrong or has expired."""
    if row is None or not hmac.compare_digest(row.digest, digest_of(secret)):
        return None
    if row.expires_s is not None and row.expires_s <= now_s:
        return None
    return Caller(row.owner, Role(row.role), row.node, row.expires_s)


FIRST_NAME, OWNER = "first", "local"  # of the token, and whose jobs are those from before it


def first_operator_token(store: Store, folder: Path, now_s: float) -> str | None:
    """Return the operator's token in a scheduler's folder; make it if the store has never had any token.

    A start that was killed between the file and the store is made up for by the next. Where the store has tokens, none
    is made: of several schedulers with one store only the first to start has the file.

    Args:
        store: Where it is known.
        folder: Where its file is.
        now_s: Unix time.

    Returns:
        The token, None if there is no file or the store does not take its token any more.

    Raises:
        InputError: If the file cannot be used or written.
    """
    path = folder / FILE
    restrict_to_owner(path)
    secret = read_token(path)
    with store.read() as tx:
        is_first = not has_tokens(tx)
    if is_first:
        made = new_token(FIRST_NAME, OWNER, Role.OPERATOR, now_s, None)
        if secret is None:
            secret = made.secret
            write_token(path, secret)
        row = made.row._replace(digest=digest_of(secret))
        store.write(lambda tx: None if has_tokens(tx) else add_token(tx, row))
    if secret is None:
        return None
    with store.read() as tx:
        found = find_token(tx, digest_of(secret))
    if found is None and is_first:
        path.unlink()  # another scheduler was faster
    valid = found is not None and (found.expires_s is None or found.expires_s > now_s)
    return secret if valid else None
