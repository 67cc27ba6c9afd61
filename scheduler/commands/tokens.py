"""`longshore token`: by the API, or directly in the store of a folder."""

import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...cluster.files.errors import InputError
from .options import (
    DEFAULT_URL,
    DURATION,
    CaOption,
    JsonOption,
    TableColumn,
    UrlOption,
    client_of,
    duration_parser,
    print_json,
    print_table,
    utc_minute_text,
)
from .store import open_existing_store

if TYPE_CHECKING:
    from ..store.database import Store

DAY_S = 86400.0
TOKEN_COLUMNS = (
    TableColumn("OWNER", gives=True), TableColumn("NAME", gives=True), TableColumn("ROLE"),
    TableColumn("NODE", gives=True), TableColumn("EXPIRES"), TableColumn("LAST USED"),
)  # fmt: skip
OWNER = "local"  # of jobs from before the first token
REVOKED_S = 0.0  # end of a token that was revoked

FolderOption = Annotated[Path | None, typer.Option(help="Folder of a scheduler, to change its store directly.")]
StoreOption = Annotated[str | None, typer.Option(help="URL of a store outside of a folder.")]
OwnerOption = Annotated[str | None, typer.Option(help="Owner of the token; default: you.")]
NameArgument = Annotated[str, typer.Argument(help="Name of the token, such as laptop.")]


def create(
    name: NameArgument,
    owner: OwnerOption = None,
    role: Annotated[
        Literal["user", "operator", "read-only", "agent", "scrape"], typer.Option(help="Rights of the token.")
    ] = "user",
    node: Annotated[str | None, typer.Option(help="Node of an agent's token.")] = None,
    lifetime: Annotated[
        float | None,
        typer.Option(
            parser=duration_parser("1m", "36500d"),
            metavar=DURATION,
            help="Time until it expires; default: that of your token.",
        ),
    ] = None,
    folder: FolderOption = None,
    store: StoreOption = None,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """Create a token and print it: it is never shown again."""
    if folder is None and store is None:
        days = None if lifetime is None else lifetime / DAY_S
        request = {"name": name, "owner": owner, "role": role, "days": days, "node": node}
        typer.echo(client_of(url, ca).create_token(request))
        return
    from ..access.tokens import Role, add_token, check_name, check_node, new_token

    now_s = time.time()
    expires_s = None if lifetime is None else now_s + lifetime
    check_node(Role(role), node)
    made = new_token(check_name(name), check_name(owner or OWNER), Role(role), now_s, expires_s, node)
    with _open_local_store(folder, store) as opened:
        opened.write(lambda tx: add_token(tx, made.row))
    typer.echo(made.secret)


def show(
    owner: OwnerOption = None,
    folder: FolderOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """List tokens, including expired ones; with --folder those of all owners."""
    found = (
        client_of(url, ca).tokens(owner) if folder is None and store is None else _stored_tokens(folder, store, owner)
    )
    if json:
        print_json(found)
    elif found:
        print_table(TOKEN_COLUMNS, [_token_cells(token) for token in found])
    else:
        typer.echo("no tokens")


def revoke(
    name: NameArgument,
    owner: OwnerOption = None,
    folder: FolderOption = None,
    store: StoreOption = None,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """Revoke a token at once."""
    if folder is None and store is None:
        client_of(url, ca).revoke_token(name, owner)
    else:
        from ..access.tokens import revoke_token

        with _open_local_store(folder, store) as opened:
            if not opened.write(lambda tx: revoke_token(tx, owner or OWNER, name, time.time())):
                raise InputError(f"{owner or OWNER} has no valid token {name!r}", "`longshore token list` shows them")
    typer.echo("revoked")


def _stored_tokens(folder: Path | None, store: str | None, owner: str | None) -> list[dict[str, Any]]:
    from ..access.tokens import tokens_of

    with _open_local_store(folder, store) as opened, opened.read() as tx:
        rows = [row._asdict() for row in tokens_of(tx, owner)]
    return [{name: value for name, value in row.items() if name != "digest"} for row in rows]  # as in the API


def _open_local_store(folder: Path | None, url: str | None) -> AbstractContextManager["Store"]:
    from ..settings import default_store_url

    return open_existing_store(url or default_store_url(folder or Path(".longshore")))


def _token_cells(token: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a token; times are UTC."""
    expires, used = (
        "never" if at_s is None else utc_minute_text(at_s) for at_s in (token["expires_s"], token["used_s"])
    )
    if token["expires_s"] == REVOKED_S:
        expires = "revoked"
    elif token["expires_s"] is not None and token["expires_s"] <= time.time():
        expires += ", expired"
    return token["owner"], token["name"], token["role"], token["node"] or "-", expires, used
