"""What is asked of a backend about one attempt, or about all of them: its mistakes are its own."""

import logging
from collections.abc import Callable
from typing import TypeVar

from ...cluster.files.errors import BackendError
from ..model.error_words import words_of

log = logging.getLogger(__name__)

T = TypeVar("T")


def ask(call: Callable[[], T]) -> T:
    """Ask the backend something: whatever goes wrong there must not hold up anything else.

    Raises:
        BackendError: If it does not answer, or by mistake raises something else.
    """
    try:
        return call()
    except BackendError:
        raise
    except Exception as error:
        log.error("the backend failed: %s", words_of(error), exc_info=error)
        raise BackendError(f"the backend failed: {type(error).__name__}: {error}") from error
