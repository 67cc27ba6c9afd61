"""Tokens of users, of which only digests are kept.

A revoked one stays, so that a store once guarded stays so. Of an owner's that have expired, only the last are kept.
"""

from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, func, insert, or_, select, update

from .engines import TakenNameError, TooManyTokensError
from .schema import user_token

MAX_VALID_TOKENS = 100  # tokens that an owner makes for himself
MAX_EXPIRED_TOKENS = 100  # tokens of an owner, the last that expired


class TokenRow(NamedTuple):
    """A token."""

    digest: str  # SHA-256 in hexadecimal
    name: str
    owner: str
    role: str
    made_s: float  # Unix time
    expires_s: float | None  # Unix time, None for never
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
    .order_by(user_token.c.expires_s.desc())
    .offset(MAX_EXPIRED_TOKENS)
)
_DELETE_EXPIRED = delete(user_token).where(user_token.c.digest.in_(_LONG_EXPIRED))
_ANY = select(user_token.c.digest).limit(1)
_ANY_VALID = _ANY.where(_VALID)
_USE = update(user_token).where(user_token.c.digest == bindparam("of_digest")).values(used_s=bindparam("at_s"))
_REVOKE = (
    update(user_token)
    .where(user_token.c.owner == bindparam("of_owner"), user_token.c.name == bindparam("of_name"), _VALID)
    .values(expires_s=bindparam("now_s"))
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


def agents_without_node(tx: Connection, role: str, now_s: float) -> list[TokenRow]:
    """Return the valid tokens of a role that are for no node, by owner."""
    rows = tx.execute(_WITHOUT_NODE, {"of_role": role, "now_s": now_s})
    return [TokenRow._make(row) for row in rows]


def use_token(tx: Connection, digest: str, at_s: float) -> None:
    """Write down when a token was used."""
    tx.execute(_USE, {"of_digest": digest, "at_s": at_s})


def revoke_token(tx: Connection, owner: str, name: str, now_s: float) -> bool:
    """Let the token of an owner with a name expire, and return whether there was one."""
    return tx.execute(_REVOKE, {"of_owner": owner, "of_name": name, "now_s": now_s}).rowcount > 0
