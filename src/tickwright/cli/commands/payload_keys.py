"""``tickwright payload-keys``: keys of encrypted payloads, how many jobs need each, and their rotation."""

from base64 import urlsafe_b64encode
from typing import Any

import typer

from tickwright.cli.kit.gateway import Gateway, ask, with_gateway
from tickwright.cli.kit.output import Json, show_answer, show_page, write

app = typer.Typer(help="Keys of encrypted payloads.", no_args_is_help=True, rich_markup_mode=None)
COLUMNS = ("key", "held", "first", "live", "dead_letters", "finished", "schedules", "outbox")
_COUNTED = ("changed", "left", "unreadable")


@app.command()
def new() -> None:
    """Print a new key: 32 random bytes as Base64. Store it where TICKWRIGHT_PAYLOAD_KEYS refers to it."""
    from tickwright.engine.payload_keys import KEY_BYTES
    from tickwright.ports.ids import random_bytes

    write(urlsafe_b64encode(random_bytes(KEY_BYTES)).decode() + "\n")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List keys with what needs each of them. Without a key: plain jobs from before the encryption."""
    show_page(ask("GET", "/payload-keys"), COLUMNS, as_json=as_json, empty="no keys, and no encrypted jobs")


@app.command()
def reencrypt(as_json: Json = False) -> None:
    """Encrypt what waits, and dead letters, again with the first key. Safe to interrupt and to repeat."""
    show_answer(with_gateway(_reencrypt), as_json=as_json, sentence=_sentence)


async def _reencrypt(gateway: Gateway) -> dict[str, int]:
    total = dict.fromkeys(_COUNTED, 0)
    body: Any = {}
    while body is not None:
        done = await gateway.ask("POST", "/payload-keys:reencrypt", body=body)
        for name in _COUNTED:
            total[name] += done[name]
        body = done["next"]
    return total


def _sentence(done: dict[str, int]) -> str:
    text = f"{done['changed']} encrypted with the first key"
    if done["left"]:
        text += f"; {done['left']} were changed or locked meanwhile: run it again"
    if done["unreadable"]:
        text += f"; {done['unreadable']} cannot be read here: add their keys, see tickwright payload-keys list"
    return text
