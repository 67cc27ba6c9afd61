"""What was last read of tokens: reading them for every request would take a thread and a transaction each time."""

import time
from contextlib import suppress

from ...access.tokens import digest_of
from ...service.service import Service
from ...store.database.errors import StoreUnreachableError
from ...store.rows.user_tokens import TokenRow, find_token, has_tokens, use_token

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
