"""TLS authorities that vouch for a server, and what is wrong where none does.

Source: SPEC K8; docs/security.md.
"""

import os
import socket
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from .errors import BackendError, InputError

PORT, PATIENCE_S = 443, 5.0
# Of OpenSSL, for the certificate of the other side (x509_vfy.h).
NOT_YET, EXPIRED, ANOTHER_HOST, ANOTHER_ADDRESS = 9, 10, 62, 64
NO_AUTHORITY = frozenset((2, 18, 19, 20, 21, 27, 28))  # none that is trusted has signed it
OF_SYSTEM = "SSL_CERT_FILE, or the store of the system"
AUTHORITY_SOURCES = f"--ca FILE, LONGSHORE_CA, {OF_SYSTEM}"  # by which a user names an authority


def client_tls_context(ca: Path | None, *, public: bool = False) -> ssl.SSLContext:
    """Return what a client trusts: one file of authorities alone, or else what programs of this system trust.

    That is the system's store, or what SSL_CERT_FILE and SSL_CERT_DIR name; a system without any has that of certifi.

    Args:
        ca: File of certificates in PEM.
        public: Whether it asks servers of the internet, for which the store of certifi counts beside the system's.

    Raises:
        InputError: If a file or folder that is named cannot be used.
    """
    if ca is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load_authorities(context, ca, "--ca")
        return context
    context = ssl.create_default_context()
    usual = ssl.get_default_verify_paths()
    if os.environ.get("SSL_CERT_FILE") == "" and Path(usual.openssl_cafile).exists():  # OpenSSL takes it for a name
        context.load_verify_locations(cafile=usual.openssl_cafile)
    if os.environ.get("SSL_CERT_DIR") == "" and Path(usual.openssl_capath).is_dir():
        context.load_verify_locations(capath=usual.openssl_capath)
    if file := os.environ.get("SSL_CERT_FILE"):
        _load_authorities(context, Path(file), "SSL_CERT_FILE")  # OpenSSL ignores one that it cannot read
    folders = os.environ.get("SSL_CERT_DIR")
    if folders and not any(map(os.path.isdir, folders.split(os.pathsep))):
        raise InputError(f"{folders} is no folder", "name one, or unset it", field="SSL_CERT_DIR")
    if not file and not folders and (public or _system_has_no_store()):
        import certifi

        context.load_verify_locations(cafile=certifi.where())
    return context


def _load_authorities(context: ssl.SSLContext, file: Path, field: str) -> None:
    try:
        context.load_verify_locations(cafile=file)
    except ssl.SSLError as error:
        raise InputError(f"{file} holds no certificate in PEM", "name another file", field=field) from error
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}", "name another file", field=field) from error


def _system_has_no_store() -> bool:
    paths = ssl.get_default_verify_paths()
    return not paths.cafile and not (paths.capath and os.listdir(paths.capath))  # noqa: PTH208


def tls_problem(error: BaseException, url: str) -> BackendError | None:
    """Return what is wrong with the TLS of a scheduler, None if something else is.

    Args:
        error: By which a request ended.
        url: Of the scheduler.
    """
    found = next((cause for cause in _error_chain(error) if isinstance(cause, ssl.SSLError)), None)
    if found is None:
        return None
    if (words := certificate_problem(error, url)) is not None:
        return BackendError(words)
    host, port = _host_and_port(url)
    if found.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"):
        return BackendError(f"{host}:{port} answers, but not by TLS; write http:// if no proxy stands before it")
    return BackendError(f"TLS with {host}:{port} cannot be agreed on: {found.reason or found}")


def certificate_problem(error: BaseException, url: str, named_by: str = AUTHORITY_SOURCES) -> str | None:
    """Return what is wrong with the certificate of a server, None if something else is.

    Args:
        error: By which a request ended.
        url: Of the server.
        named_by: By what a user may name an authority there.
    """
    found = next((cause for cause in _error_chain(error) if isinstance(cause, ssl.SSLCertVerificationError)), None)
    if found is None:
        return None
    host, port = _host_and_port(url)
    is_direct = "https" not in getproxies() or proxy_bypass(host)  # else another certificate may be shown than was met
    return _problem_text(found, host, _unverified_certificate(host, port) if is_direct else {}, named_by)


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or PORT


def _error_chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _problem_text(error: ssl.SSLCertVerificationError, host: str, shown: dict[str, Any], named_by: str) -> str:
    holder = (
        f"{_name_text(shown['subject'])}, signed by {_name_text(shown['issuer'])}" if shown else "it cannot be shown"
    )
    begin = f"the certificate of {host} ({holder})"
    if error.verify_code == EXPIRED:
        return (
            f"{begin} has expired{_date_text(shown, 'notAfter')}; have it renewed, or check the clock of this machine"
        )
    if error.verify_code == NOT_YET:
        return f"{begin} is not valid yet{_date_text(shown, 'notBefore')}; check the clock of this machine"
    if error.verify_code in (ANOTHER_HOST, ANOTHER_ADDRESS):
        names = [value for kind, value in shown.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
        known = f": it is for {', '.join(names)}" if names else ""
        return f"{begin} is not for {host}{known}; write a name into the URL that it is for"
    if error.verify_code in NO_AUTHORITY:
        return f"{begin} is not trusted: {error.verify_message}; name the authority that signed it: {named_by}"
    return f"{begin} is not accepted: {error.verify_message}"


def _date_text(shown: dict[str, Any], field: str) -> str:
    return f" ({shown[field]})" if field in shown else ""


def _name_text(parts: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Return a name of a certificate for people: its common name, or else all of it."""
    pairs = [pair for part in parts for pair in part]
    common = [value for key, value in pairs if key == "commonName"]
    name = common[0] if common else ", ".join(value for _, value in pairs)
    return repr(name) if name else "an empty name"


def _unverified_certificate(host: str, port: int) -> dict[str, Any]:
    """Return the content of a server's certificate, which is not trusted; nothing if it cannot be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), PATIENCE_S) as line,
            context.wrap_socket(line, server_hostname=host) as secured,
        ):
            # Python decodes no certificate that it did not verify, but for this method, which it has had since 3.10.
            found: dict[str, Any] = secured._sslobj.get_unverified_chain()[0].get_info()  # type: ignore[attr-defined]
            return found
    except (OSError, AttributeError, IndexError, TypeError, ValueError):
        return {}
