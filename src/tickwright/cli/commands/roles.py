"""Database roles for programs that use only plain SQL."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tickwright.cli.kit.output import Json, say, show_answer, show_json, show_rows, write
from tickwright.domain.errors import Rejected

if TYPE_CHECKING:
    from tickwright.store.pool import Connection

app = typer.Typer(help="Database roles that use plain SQL only.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def create(
    kind: Annotated[Literal["app"], typer.Argument(metavar="app", help="A role for programs that use plain SQL.")],
    name: Annotated[str, typer.Option(help="Name of the role; one for each program and database.")] = "tickwright_app",
    login: Annotated[bool, typer.Option("--login", help="It may log in; without this, grant it to others.")] = False,
    password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its first line is the password; implies --login.")
    ] = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the statements instead of running them.")] = False,
    as_json: Json = False,
) -> None:
    """Create a role that can only schedule, register and publish by SQL. Running it again changes nothing."""
    from tickwright.store.app_roles import app_role_sql, create_app_role

    password = None if password_file is None else _first_line(password_file)
    login = login or password is not None

    async def work() -> list[str]:
        async with _connection() as connection:
            if sql:
                return await app_role_sql(connection, name, login=login)
            await create_app_role(connection, name, login=login, password=password)
            return []

    statements = asyncio.run(work())
    if sql:
        write("".join(f"{statement};\n" for statement in statements))
        if password is not None:
            say(f"the password is not in them; set it with \\password {name} in psql")
        return
    show_answer({"role": name, "kind": kind, "login": login}, as_json=as_json, sentence=lambda a: f"role {a['role']}")


@app.command()
def check(as_json: Json = False) -> None:
    """List rights of roles beyond those of `roles create app`. Exit code 1 if there are any."""
    from tickwright.store.app_roles import excess_rights

    async def work() -> list[dict[str, object]]:
        async with _connection() as connection:
            return [dict(row) for row in await excess_rights(connection)]

    found = asyncio.run(work())
    if as_json:
        show_json({"items": found})
    else:
        show_rows(found, ("role", "privilege", "on", "columns"), empty="no role has more rights than it needs")
    if found:
        raise typer.Exit(1)


@asynccontextmanager
async def _connection() -> "AsyncIterator[Connection]":
    from tickwright.process.database import open_database, translated
    from tickwright.process.installation import close_pool, ensure_schema
    from tickwright.process.settings import load_settings
    from tickwright.store.pool import open_pool

    async with open_database(load_settings()) as database:
        await ensure_schema(database)
        pool = await open_pool(database.url, max_size=1, behind_pooler=database.behind_pooler)
        try:
            with translated():
                async with pool.acquire() as connection:
                    yield connection
        finally:
            await close_pool(pool)


def _first_line(file: Path) -> str:
    try:
        return file.read_text("utf-8").partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected("file_unreadable", f"{file} cannot be read") from error
