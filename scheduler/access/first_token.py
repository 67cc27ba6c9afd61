"""The token that the first start of a scheduler makes for whoever starts it, so that it serves nobody else.

Source: SPEC K8.
"""

from pathlib import Path

from ..store.opening import Store
from ..store.rows.user_tokens import add_token, find_token, has_tokens
from .token_file import FILE, close_to_others, read_token, write_token
from .tokens import Role, digest_of, new_token

NAME, OWNER = "first", "local"  # of the token, and whose jobs are those from before it


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
        made = new_token(NAME, OWNER, Role.OPERATOR, now_s, None)
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
