"""The token that the first start makes, and that the command line finds by itself."""

import os
import pty
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from longshore.cluster.files.errors import InputError
from longshore.scheduler.access import token_file
from longshore.scheduler.access.token_file import link_token, read_token, read_token_file, write_token
from longshore.scheduler.access.tokens import Role, add_token, first_operator_token, new_token, revoke_token, tokens_of
from longshore.scheduler.client import END, Client
from longshore.scheduler.store.database import Store, open_store
from tests.support import processes

from .served import LONGSHORE, PATIENCE_S, SERVE, Served, until

NOBODY = 65534
SECRET = "ls_" + "a" * 43
OTHER = "ls_" + "b" * 43


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Store]:
    it = open_store(f"sqlite:///{tmp_path / 'longshore.db'}")
    yield it
    it.close()


def names(store: Store) -> list[str]:
    with store.read() as tx:
        return [row.name for row in tokens_of(tx, None)]


@pytest.mark.full
def test_root_runs_it_only_if_that_is_allowed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can try")
    done = Served(tmp_path).call("serve", check=False)

    assert (done.returncode, done.stderr) == (
        2,
        "longshore: serve would run as root, and so would every job that it starts on this machine; "
        "start it as another user, or with --as-root\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_the_next_start_goes_on_with_the_token(opened: Store, tmp_path: Path) -> None:
    made = first_operator_token(opened, tmp_path, 1.0)

    assert first_operator_token(opened, tmp_path, 2.0) == made
    assert names(opened) == ["first"]
    assert read_token(tmp_path / "token") == made


def test_a_start_that_was_killed_before_the_store_had_the_token_is_made_up_for(opened: Store, tmp_path: Path) -> None:
    write_token(tmp_path / "token", SECRET)

    assert first_operator_token(opened, tmp_path, 1.0) == SECRET
    assert names(opened) == ["first"]


def test_where_there_are_tokens_none_is_made(opened: Store, tmp_path: Path) -> None:
    made = new_token("laptop", "ada", Role.OPERATOR, 1.0, None)
    opened.write(lambda tx: add_token(tx, made.row))

    assert first_operator_token(opened, tmp_path, 2.0) is None
    assert names(opened) == ["laptop"]
    assert not (tmp_path / "token").exists()


def test_a_token_that_was_revoked_comes_not_back(opened: Store, tmp_path: Path) -> None:
    first_operator_token(opened, tmp_path, 1.0)
    opened.write(lambda tx: revoke_token(tx, "local", "first", 2.0))

    assert first_operator_token(opened, tmp_path, 3.0) is None
    (tmp_path / "token").unlink()
    assert first_operator_token(opened, tmp_path, 3.0) is None
    assert names(opened) == ["first"]


def test_the_rights_that_a_volume_gives_to_a_group_are_taken_away(opened: Store, tmp_path: Path) -> None:
    made = first_operator_token(opened, tmp_path, 1.0)
    (tmp_path / "token").chmod(0o660)

    assert first_operator_token(opened, tmp_path, 2.0) == made
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "words"])
def test_what_is_no_token_of_ours_is_neither_used_nor_written_over(opened: Store, tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / "token", tmp_path / "target"
    target.write_text(OTHER)
    target.chmod(0o600)
    make: dict[str, Callable[[], object]] = {
        "link": lambda: path.symlink_to(target), "folder": path.mkdir, "pipe": lambda: os.mkfifo(path, 0o600),
        "words": lambda: path.touch(0o600),
    }  # fmt: skip
    make[kind]()

    with pytest.raises(InputError, match=re.escape(str(path))):
        first_operator_token(opened, tmp_path, 1.0)

    assert names(opened) == []
    assert target.read_text() == OTHER


def test_a_file_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write_token(path, SECRET)
    path.chmod(0o640)

    with pytest.raises(InputError, match=r"others may read this token; write `chmod 600 "):
        read_token(path)


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """Two ports at which this user listens."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        yield one.getsockname()[1], two.getsockname()[1]


@pytest.fixture
def at_home(tmp_path: Path, ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose token is that of the first port."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    write_token(tmp_path / "token", SECRET)
    link_token(tmp_path / "token", ports[0])
    return tmp_path


def test_the_token_is_found_by_the_port_and_else_in_the_folder(at_home: Path, ports: tuple[int, int]) -> None:
    ours, other = ports
    urls = [f"http://127.0.0.1:{ours}", f"http://localhost:{ours}/", f"http://[::1]:{ours}"]
    assert [read_token_file(url) for url in urls] == [SECRET] * 3
    assert read_token_file(f"http://127.0.0.1:{other}") is None

    (at_home / ".longshore").mkdir()
    write_token(at_home / ".longshore" / "token", OTHER)

    assert read_token_file(f"http://127.0.0.1:{other}") == OTHER
    assert read_token_file(f"http://127.0.0.1:{ours}") == SECRET
    (at_home / "token").unlink()
    assert read_token_file(f"http://127.0.0.1:{ours}") == OTHER


@pytest.mark.parametrize(
    "url", ["http://scheduler.example:{}", "http://10.0.0.1:{}", "http://127.0.0.1.example:{}", "", "http://[:{}"]
)
def test_another_machine_never_gets_the_token(at_home: Path, ports: tuple[int, int], url: str) -> None:
    assert read_token_file(url.format(ports[0])) is None


def test_a_port_at_which_no_process_listens_does_not_get_the_token(at_home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        link_token(at_home / "token", port)
        assert read_token_file(f"http://127.0.0.1:{port}") == SECRET

    assert read_token_file(f"http://127.0.0.1:{port}") is None  # anybody may begin to


def test_a_stream_that_broke_off_goes_on_only_where_the_token_is_found_again() -> None:
    shown: list[str | None] = []

    class Breaking(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            name = "log" if len(shown) == 1 else END
            self.wfile.write(f'id: 1:0:1\nevent: {name}\ndata: {{"text": "x"}}\n\n'.encode())

        def log_message(self, format: str, *_: object) -> None:  # noqa: A002
            return

    tokens = iter([SECRET, None, None, OTHER])
    with HTTPServer(("127.0.0.1", 0), Breaking) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        client = Client(f"http://127.0.0.1:{server.server_port}", lambda: next(tokens))
        reported = list(client.follow_logs("job", "0"))
        server.shutdown()
        thread.join()

    assert (reported, shown) == (["x"], [f"Bearer {SECRET}", f"Bearer {OTHER}"])


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root, to be two users")
def test_a_port_at_which_another_user_listens_does_not_get_the_token(at_home: Path) -> None:
    code = (
        "import os, socket, time\n"
        f"os.setuid({NOBODY})\n"
        "it = socket.create_server(('127.0.0.1', 0)); print(it.getsockname()[1], flush=True); time.sleep(1000)"
    )
    other = processes.start([sys.executable, "-c", code], stdout=processes.PIPE, text=True)
    try:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        link_token(at_home / "token", port)

        assert read_token_file(f"http://127.0.0.1:{port}") is None
    finally:
        other.kill()
        other.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root, to be two users")
def test_the_token_of_another_user_is_not_used(at_home: Path, ports: tuple[int, int]) -> None:
    os.chown(at_home / "token", NOBODY, NOBODY)

    assert read_token_file(f"http://127.0.0.1:{ports[0]}") is None


@pytest.mark.full
def test_who_starts_it_at_a_terminal_is_given_a_link_that_lets_one_browser_in(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line, environment = [*LONGSHORE, *SERVE, "--port", str(port)], {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    reported = b""
    with processes.start(line, cwd=tmp_path, stdout=theirs, env=environment):
        while b"without hardware" not in reported:
            reported += os.read(ours, 4096)

        [link] = re.findall(rf"http://127\.0\.0\.1:{port}/login\?code=\S+", reported.decode())
        with (
            httpx.Client(timeout=PATIENCE_S, trust_env=False) as browser,
            httpx.Client(timeout=PATIENCE_S, trust_env=False) as second,
        ):
            until(lambda: answers(browser, port))
            entered = browser.get(link)
            assert (entered.status_code, entered.headers["Location"]) == (303, "/")
            assert browser.get(f"http://127.0.0.1:{port}/").status_code == 200
            again = second.get(link)
            assert (again.status_code, "the link was used" in again.text) == (401, True)
    assert (tmp_path / ".longshore" / "token").read_text().strip() not in reported.decode()
    os.close(ours)
    os.close(theirs)


def answers(client: httpx.Client, port: int) -> bool:
    try:
        return client.get(f"http://127.0.0.1:{port}/healthz").is_success
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    ("url", "port"),
    [("https://localhost", 443), ("http://localhost", 80), ("https://127.0.0.1:8765", 8765), ("http://[::1]/x", 80)],
)
def test_the_port_of_a_url_without_one_is_that_of_its_scheme(
    monkeypatch: pytest.MonkeyPatch, url: str, port: int
) -> None:
    ports: list[int] = []

    def listening_users(port: int) -> set[int]:
        ports.append(port)
        return set()

    monkeypatch.setattr(token_file, "listening_users", listening_users)

    assert read_token_file(url) is None
    assert ports == [port]
