"""A scheduler behind TLS: which certificates are trusted, and the error for one that is not."""

import json
import shutil
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from longshore.cluster.files.errors import BackendError, InputError
from longshore.scheduler.client import Client
from tests.cluster.traces.public.download_runs import row
from tests.command_line import COMMANDS, Command, command_of
from tests.support import processes

NOW, ANSWER = datetime.now(UTC), b"[]"
HOSTS = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]


class Pair(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def made(name: str, by: Pair | None = None, *, days: tuple[int, int] = (-1, 1), others: bool = False) -> Pair:
    """Return a certificate by an authority, or by itself, which then is one unless it has names of hosts."""
    key = ec.generate_private_key(ec.SECP256R1())
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(own if by is None else by.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW + timedelta(days=days[0]))
        .not_valid_after(NOW + timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
    )
    hosts: list[x509.GeneralName] = [x509.DNSName("elsewhere.example")] if others else list(HOSTS)
    if by is not None or name == "alone":
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return Pair(builder.sign(key if by is None else by.key, hashes.SHA256()), key)


class Answers(BaseHTTPRequestHandler):
    """Answers every request with an empty list."""

    def do_GET(self) -> None:  # name of the library
        self.send_response(200)
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Authority(NamedTuple):
    """A private authority, and where its certificate is."""

    pair: Pair
    file: Path

    def trust(self, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Name it in the environment."""
        if how == "SSL_CERT_DIR":
            asked = processes.run(
                ["openssl", "x509", "-hash", "-noout", "-in", self.file], capture_output=True, check=True
            )
            (self.file.parent / f"{asked.stdout.strip()}.0").write_bytes(self.pair.pem)  # by which OpenSSL finds it
        monkeypatch.setenv(how, str(self.file.parent if how == "SSL_CERT_DIR" else self.file))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    pair, file = made("Private CA"), tmp_path_factory.mktemp("ca") / "ca.pem"
    file.write_bytes(pair.pem)
    return Authority(pair, file)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator["Serve"]:
    serving = Serve(tmp_path)
    yield serving
    serving.close()


class Serve:
    """Servers with certificates, on this machine.

    Args:
        folder: For the certificates.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._servers = folder, list[ThreadingHTTPServer]()

    def __call__(self, pair: Pair | None) -> int:
        """Return the port of a server with a certificate; of one without TLS if there is none."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        if pair is not None:
            file, context = self._folder / f"{len(self._servers)}.pem", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            own = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            file.write_bytes(pair.pem + pair.key.private_bytes(serialization.Encoding.PEM, *own))
            context.load_cert_chain(file)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self._servers.append(server)
        return int(server.server_address[1])

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()


@pytest.fixture(autouse=True)
def _of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "LONGSHORE_CA", "LONGSHORE_URL", "LONGSHORE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl (apt-get install openssl)")
IN_FOLDER = pytest.param("SSL_CERT_DIR", marks=needs_openssl)


@pytest.mark.parametrize("how", ["--ca", "LONGSHORE_CA", "SSL_CERT_FILE", IN_FOLDER])
def test_an_authority_that_is_named_is_trusted(
    how: str, serve: Serve, authority: Authority, longshore: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"https://localhost:{serve(made('own', authority.pair))}"
    assert longshore("node", "list", "--url", url).status == 2
    given = ["--ca", authority.file] if how == "--ca" else []
    if not given:
        authority.trust(how, monkeypatch)
    assert longshore("node", "list", "--url", url, *given).status == 0


@pytest.mark.parametrize("how", ["SSL_CERT_FILE", IN_FOLDER])
def test_a_trace_comes_from_a_mirror_whose_authority_is_trusted(
    how: str, serve: Serve, authority: Authority, longshore: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue, url = tmp_path / "catalogue.json", f"https://localhost:{serve(made('own', authority.pair))}"
    catalogue.write_text(json.dumps([row(ANSWER)]))
    monkeypatch.chdir(tmp_path)
    line = ("trace", "download", "small", "--catalogue", catalogue, "--mirror", url)
    refused = longshore(*line)
    assert (refused.status, "signed by 'Private CA'" in refused.err, "--ca" in refused.err) == (2, True, False)
    authority.trust(how, monkeypatch)
    assert longshore(*line).status == 0


def refused(port: int, ca: Path | None, host: str = "localhost") -> str:
    """Return the error for a server that is not trusted; it does not advise to start another."""
    with pytest.raises(BackendError) as caught:
        Client(f"https://{host}:{port}", ca=ca).nodes()
    assert "longshore serve" not in str(caught.value)
    return str(caught.value)


def test_a_certificate_that_is_not_accepted_is_named_with_the_reason(serve: Serve, authority: Authority) -> None:
    other, month = made("Other CA"), f"{NOW - timedelta(days=2):%b}"
    cases = {
        "other authority": (made("own", other), ("'own'", "'Other CA'", "not trusted", "--ca")),
        "by itself": (made("alone"), ("'alone', signed by 'alone'", "not trusted", "--ca")),
        "expired": (made("own", authority.pair, days=(-9, -2)), ("'own'", "'Private CA'", "expired", month)),
        "not yet": (made("own", authority.pair, days=(2, 9)), ("'own'", "'Private CA'", "not valid yet")),
        "another host": (made("own", authority.pair, others=True), ("'own'", "not for localhost", "elsewhere.example")),
    }
    for case, (pair, words) in cases.items():
        received = refused(serve(pair), authority.file)
        assert [word for word in words if word not in received] == [], (case, received)
    received = refused(serve(cases["another host"][0]), authority.file, "127.0.0.1")
    assert "not for 127.0.0.1" in received
    received = refused(serve(made("own", authority.pair)), None)
    assert "'Private CA'" in received


def test_a_server_without_tls_is_no_certificate_that_is_refused(serve: Serve, authority: Authority) -> None:
    assert "http://" in refused(serve(None), authority.file)


@pytest.mark.parametrize("how", ["--ca", "SSL_CERT_FILE", "SSL_CERT_DIR"])
@pytest.mark.parametrize("what", ["nothing", "a folder", "no certificate"])
def test_a_file_without_certificates_is_named(
    how: str, what: str, tmp_path: Path, longshore: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ca.pem"
    if what == "a folder":
        path.mkdir()
    elif what == "no certificate":
        path.write_text("-----BEGIN RSA PRIVATE KEY-----\n")
    if (how, what) == ("SSL_CERT_DIR", "a folder"):
        return
    if how != "--ca":
        monkeypatch.setenv(how, str(path))
    with pytest.raises(InputError) as caught:
        Client("https://localhost:1", ca=path if how == "--ca" else None)
    assert how in str(caught.value)
    assert str(path) in str(caught.value)


def test_every_command_that_calls_a_scheduler_takes_the_option() -> None:
    options = {name: [each for item in command_of(name.split())[0].params for each in item.opts] for name in COMMANDS}
    asking = {name: taken for name, taken in options.items() if "--url" in taken}
    assert len(asking) > 20
    assert [name for name, taken in asking.items() if "--ca" not in taken] == []
