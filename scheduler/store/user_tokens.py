"""Tokens of users, of which only digests are kept."""

from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from .schema import user_token


class TokenRow(NamedTuple):
    """A token."""

    digest: str  # SHA-256 in hexadecimal
    name: str
    owner: str
    scopes: str  # with spaces between them
    made_s: float  # Unix time
    expires_s: float | None  # Unix time, None for never
    used_s: float | None = None  # Unix time of its last use


_INSERT = insert(user_token)
_ROWS = select(*(user_token.c[name] for name in TokenRow._fields))
_ONE = _ROWS.where(user_token.c.digest == bindparam("of_digest"))
_OF_OWNER = _ROWS.where(user_token.c.owner == bindparam("of_owner")).order_by(user_token.c.made_s)
_USE = update(user_token).where(user_token.c.digest == bindparam("of_digest")).values(used_s=bindparam("at_s"))
_DELETE = delete(user_token).where(
    user_token.c.owner == bindparam("of_owner"), user_token.c.name == bindparam("of_name")
)


def add_token(tx: Connection, row: TokenRow) -> None:
    """Store a token."""
    tx.execute(_INSERT, row._asdict())


def find_token(tx: Connection, digest: str) -> TokenRow | None:
    """Return the token with a digest, expired or not; None if there is none."""
    row = tx.execute(_ONE, {"of_digest": digest}).first()
    return None if row is None else TokenRow._make(row)


def tokens_of(tx: Connection, owner: str) -> list[TokenRow]:
    """Return the tokens of an owner, the oldest first."""
    return [TokenRow._make(row) for row in tx.execute(_OF_OWNER, {"of_owner": owner})]


def use_token(tx: Connection, digest: str, at_s: float) -> None:
    """Write down when a token was used."""
    tx.execute(_USE, {"of_digest": digest, "at_s": at_s})


def delete_token(tx: Connection, owner: str, name: str) -> bool:
    """Delete the tokens of an owner with a name, and return whether there were any."""
    return tx.execute(_DELETE, {"of_owner": owner, "of_name": name}).rowcount > 0
