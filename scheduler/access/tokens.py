"""Tokens of users, their roles, and the token that the first start of a scheduler creates.

Source: SPEC K8; docs/security.md.
"""

import hashlib
import hmac
import re
import secrets
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from ...cluster.files.errors import InputError
from ..store.opening import Store
from ..store.tokens import TokenRow, add_token, find_token, has_tokens
from .token_file import FILE, close_to_others, read_token, write_token

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
    """Return a new, unique token.

    Args:
        name: Of the token, for people.
        owner: Its user.
        role: What the owner may do with it.
        made_s: Unix time.
        expires_s: Unix time from which on it is refused, None for never.
        node: That an agent reports on.
    """
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


def first_token(store: Store, folder: Path, now_s: float) -> str | None:
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
    close_to_others(path)
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
