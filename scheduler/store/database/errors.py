"""Errors of the store.

LongshoreError
└── StoreError               a store that cannot be used as it is
    ├── StoreUnreachableError   it does not answer; nothing was changed, or it is not known whether it was
    │   ├── StoreFullError         its disk is full
    │   └── StoreLostError         its file was deleted or replaced under it
    ├── StoreRefusesError       it takes no change, whichever job it is of
    ├── FencedError             another scheduler has taken over, and the writer has to stop
    ├── StaleWriteError         the row is not what the writer had read; read again and decide again
    ├── TakenError              another attempt holds a GPU
    ├── OlderAttemptError       a later attempt of the job has begun, and what an older one says no longer counts
    ├── TakenNameError          there is one of that name already
    └── TooManyTokensError      an owner has as many tokens as are allowed
"""

from ....cluster.files.errors import LongshoreError


class StoreError(LongshoreError):
    """A store that cannot be used as it is."""


class StoreUnreachableError(StoreError):
    """The store does not answer.

    A read or write that raises it can be repeated. If the answer to a commit was lost, a write that is guarded by a
    version raises StaleWriteError when it is repeated.
    """


class StoreFullError(StoreUnreachableError):
    """The disk of the store is full; nothing was changed, and what is stored can be read."""


class StoreLostError(StoreUnreachableError):
    """The file of the store is not the one that was opened; nothing is read or written until it is there again."""


class StoreRefusesError(StoreError):
    """The store answers, and refuses what any change writes; nothing was changed, and no job is to blame."""


class FencedError(StoreError):
    """Another scheduler has taken the lease over; the one that gets this has to stop at once."""


class StaleWriteError(StoreError):
    """A row is not, or no longer, what the writer had read of it; nothing was changed."""


class TakenError(StoreError):
    """A GPU of a placement is reserved for another attempt; nothing was changed."""


class OlderAttemptError(StoreError):
    """A later attempt of the job has begun, so what an older one says no longer counts; nothing was changed."""


class TakenNameError(StoreError):
    """There is one of that name already; nothing was changed."""


class TooManyTokensError(StoreError):
    """An owner has as many tokens as are allowed; nothing was changed."""
