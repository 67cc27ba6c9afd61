"""Fetching one file by HTTP: goes on where it broke off, and bounded in size and silence."""

import os
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

from ...files.certificates import OF_SYSTEM, certificate_problem, trusting
from ...files.errors import InputError

if TYPE_CHECKING:
    import httpx

Tell = Callable[[int, int | None], None]  # bytes that are here, and of how many if that is known
TRIES = 3  # in a row that bring nothing new
PAUSE_S = 0.5  # after the first of them; it doubles
RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
NETWORK = "check the network and the proxy, or name a mirror with --mirror"
AGAIN = "run the same command again: it goes on where this one stopped"
TOO_LONG = "it is not the file that was asked for; check the mirror or the proxy"


def fetch(url: str, into: BinaryIO, *, size: int | None, most: int, timeout_s: float, tell: Tell) -> None:
    """Fetch what a file does not hold yet.

    A connection that breaks, or a server that has trouble, is tried again, up to three times in a row that bring
    nothing new.

    Args:
        url: Where it is.
        into: Holds the first bytes, if any are there from earlier; open for reading and writing.
        size: Bytes of the whole, if known.
        most: Bytes that it may have.
        timeout_s: Silence after which a connection counts as broken.
        tell: Is told how far it is.

    Raises:
        InputError: If it cannot be had.
        OSError: If it cannot be written.
    """
    import httpx

    try:
        identity = {"Accept-Encoding": "identity"}
        client = httpx.Client(
            verify=trusting(None, public=True), timeout=timeout_s, follow_redirects=True, headers=identity
        )
    except (ValueError, ImportError, OSError, httpx.InvalidURL) as error:  # what the environment says of proxies
        raise InputError(
            f"no connection can be set up: {_plain(error)}", "check HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE"
        ) from error
    furthest, failed = _end(into), 0
    tell(furthest, size)
    with client:
        while trouble := _receive(client, url, into, size, most, tell):
            failed = 0 if _end(into) > furthest else failed + 1
            furthest = max(furthest, _end(into))
            if failed == TRIES:
                raise InputError(f"{url}: {trouble}", AGAIN)
            time.sleep(PAUSE_S * 2 ** (failed - 1) if failed else 0.0)


def _receive(client: "httpx.Client", url: str, into: BinaryIO, size: int | None, most: int, tell: Tell) -> str:
    """Fetch the rest in one try, and return what broke it; empty if nothing did."""
    import httpx

    have = _end(into)
    try:
        with client.stream("GET", url, headers={"Range": f"bytes={have}-"} if have else {}) as answer:
            if have and answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                return ""  # nothing is left; whether it is the right file, its hash tells
            if answer.is_server_error or answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
                return f"the server answers {answer.status_code} {answer.reason_phrase}"
            _check_answer(url, answer)
            return _append(answer, url, into, size, most, tell)
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        if (problem := certificate_problem(error, str(error.request.url), OF_SYSTEM)) is not None:
            raise InputError(f"{url}: {problem}") from error
        if have:  # the network was there, and may come back
            return f"the server cannot be reached any more: {_plain(error)}"
        raise InputError(f"{url}: the server cannot be reached: {_plain(error)}", NETWORK) from error
    except httpx.TimeoutException:
        return f"the server sent nothing for {client.timeout.read:g} s"
    except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
        return f"the connection broke: {_plain(error)}"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(f"{url}: {_plain(error)}", NETWORK) from error


def _check_answer(url: str, answer: "httpx.Response") -> None:
    if not answer.is_success:
        seen = f"{answer.status_code} {answer.reason_phrase}".strip()
        raise InputError(f"{url}: the server answers {seen}", "check the mirror; the file may have been taken away")
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        problem = f"{url}: the server packs the file ({answer.headers['Content-Encoding'][:40]}), unasked"
        raise InputError(problem, "name another mirror, or check the proxy")


def _append(answer: "httpx.Response", url: str, into: BinaryIO, size: int | None, most: int, tell: Tell) -> str:
    """Write an answer behind what is there, or in its place if the server begins anew; return what broke it."""
    have = _begin(answer, _end(into))
    if have < 0:
        into.truncate(0)
        return "the server sent another part than the one that was asked for"
    into.truncate(have)
    into.seek(have)
    length = answer.headers.get("Content-Length", "")
    total = have + int(length) if length.isdecimal() else None
    if total is not None and (total > most or size not in (None, total)):
        raise InputError(f"{url}: the server offers {total:,} bytes instead of {_expected(size, most)}", TOO_LONG)
    tell(have, size or total)
    for chunk in answer.iter_raw():
        have += len(chunk)
        if have > most:
            raise InputError(f"{url}: the server sends more than {_expected(size, most)}", TOO_LONG)
        into.write(chunk)
        tell(have, size or total)
    return "" if size in (None, have) else f"the connection ended after {have:,} of {size:,} bytes"


def _begin(answer: "httpx.Response", have: int) -> int:
    """Return at which byte an answer begins; -1 for a part that does not follow on what is there."""
    if answer.status_code != 206:
        return 0
    found = RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    return have if found and int(found[1]) == have else -1


def _end(file: BinaryIO) -> int:
    return file.seek(0, os.SEEK_END)


def _expected(size: int | None, most: int) -> str:
    return f"the {most:,} that may come" if size is None else f"the {size:,} that the file has"


def _plain(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
