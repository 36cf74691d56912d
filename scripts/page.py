"""The web page's build: what is in ``dashboard/static`` comes from ``dashboard/web``, and this proves it.

``schema`` writes the OpenAPI document without a server and makes the page's types of it; ``build`` makes ``static/``;
``check`` compares the hash of the source with the one that ``static/`` was built from and needs no Node; ``verify``
builds again elsewhere and compares every file. Only ``check`` is needed to work on the Python side.
"""

import argparse
import asyncio
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WEB = ROOT / "src/tickwright/dashboard/web"
STATIC = ROOT / "src/tickwright/dashboard/static"
HASH = "source.sha256"
_FILES = ("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts")
_FOLDERS = ("src", "public")
_ID = re.compile(r"^(id|ids|worker|fence|.*_ids?)$")
_REFERENCE = re.compile(r'"#/components/schemas/([^"]+)"')
_NODE_MIN = (20, 19)


class Broken(Exception):
    """Something that the caller can put right; its text says how."""


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["schema", "build", "check", "verify"])
    command = parser.parse_args().command
    try:
        {"schema": schema, "build": build, "check": check, "verify": verify}[command]()
    except Broken as problem:
        print(f"page: {problem}", file=sys.stderr)
        return 1
    return 0


def schema() -> None:
    """Write the types of the API that the page is compiled against."""
    _node()
    _install()
    for name, text in _types().items():
        (WEB / "src/api" / name).write_text(text, encoding="utf-8")


def build() -> None:
    """Make ``static/`` from the source, with types of today's API."""
    schema()
    _npm("run", "check")
    bundle()


def bundle() -> None:
    """Make ``static/`` from the source as it is; needs Node and nothing of ours."""
    _node()
    _install()
    with tempfile.TemporaryDirectory(prefix=".page-", dir=WEB.parent) as folder:
        made = Path(folder) / "static"
        _vite(made)
        (made / HASH).write_text(source_hash() + "\n", encoding="ascii")
        if STATIC.exists():
            STATIC.rename(Path(folder) / "before")  # as a whole: a server that starts now reads one build or the other
        made.rename(STATIC)
    print(f"page: {sum(1 for _ in _within(STATIC))} files in {STATIC.relative_to(ROOT)}")


def check() -> None:
    """Refuse files that were built from another source."""
    built = STATIC / HASH
    if not built.exists() or built.read_text(encoding="ascii").strip() != source_hash():
        raise Broken("the source changed since static/ was built; run: python scripts/page.py build")


def verify() -> None:
    """Build again and compare, types and files; without Node a laptop skips this, and CI fails."""
    try:
        _node()
    except Broken as problem:
        if os.environ.get("CI"):
            raise
        print(f"page: not rebuilt: {problem}", file=sys.stderr)
        return
    check()
    _install()
    stale = [name for name, text in _types().items() if (WEB / "src/api" / name).read_text(encoding="utf-8") != text]
    if stale:
        raise Broken(f"the API changed since {', '.join(stale)} was written; run: python scripts/page.py build")
    _npm("run", "check")
    with tempfile.TemporaryDirectory() as folder:
        _vite(Path(folder) / "static")
        there, here = _digests(Path(folder) / "static"), _digests(STATIC)
        here.pop(HASH, None)
        if there != here:
            names = sorted(name for name in {*there, *here} if there.get(name) != here.get(name))
            raise Broken(
                f"a build of this source differs in {', '.join(names[:10])}; run: python scripts/page.py build"
            )


def source_hash() -> str:
    """Return the hash over every source file, its name included."""
    whole = hashlib.sha256()
    for file in sorted([WEB / name for name in _FILES] + [file for name in _FOLDERS for file in _within(WEB / name)]):
        whole.update(f"{file.relative_to(WEB).as_posix()}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def _within(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file())


def _digests(folder: Path) -> dict[str, str]:
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in _within(folder)
    }


def _node() -> None:
    try:
        said = subprocess.run(["node", "--version"], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        raise Broken("Node is not installed; it is needed only to rebuild the page") from None
    numbers = tuple(int(part) for part in said.strip().lstrip("v").split(".")[:2])
    if numbers < _NODE_MIN or shutil.which("npm") is None:
        raise Broken(f"Node {'.'.join(map(str, _NODE_MIN))} or newer with npm is needed, {said.strip()} is here")


def _npm(*words: str, **more: str) -> None:
    run = subprocess.run(
        ["npm", "--silent", *words], cwd=WEB, env={**os.environ, **more}, check=False, capture_output=True, text=True
    )
    if run.returncode:
        raise Broken(f"npm {' '.join(words)} failed\n{run.stdout}{run.stderr}")


def _install() -> None:
    """Install exactly what the lock says; nothing to do where that is installed already."""
    mark = WEB / "node_modules" / ".installed"
    wanted = hashlib.sha256((WEB / "package-lock.json").read_bytes()).hexdigest()
    if mark.exists() and mark.read_text(encoding="ascii") == wanted:
        return
    _npm("ci")
    mark.write_text(wanted, encoding="ascii")


def _vite(out: Path) -> None:
    _npm("run", "build", "--", "--logLevel", "warn", PAGE_OUT=str(out))


def _types() -> dict[str, str]:
    """Return what is generated: the types, and the fields whose content is the user's own JSON."""
    document = _document()
    with tempfile.TemporaryDirectory() as folder:
        file, made = Path(folder) / "openapi.json", Path(folder) / "schema.d.ts"
        file.write_text(json.dumps(document), encoding="utf-8")
        _npm(
            "exec",
            "--",
            "openapi-typescript",
            str(file),
            "-o",
            str(made),
            "--default-non-nullable",
            "false",
            "--empty-objects-unknown",
        )
        types = made.read_text(encoding="utf-8")
    return {"schema.d.ts": types, "opaque.json": json.dumps(sorted(_opaque(document)), indent=2) + "\n"}


class _Nothing:
    """Replaces what routes answer from: they are only described here, never called."""

    def __getattr__(self, name: str) -> "_Nothing":
        return self

    def __call__(self, *_: object, **__: object) -> "_Nothing":
        return self


def _document() -> dict[str, Any]:
    """Return the API's document as the page sees it: ids are strings there, since numbers end at 2^53."""
    sys.path.insert(0, str(ROOT / "src"))
    from starlette.routing import Route

    from tickwright.api.app import create_app
    from tickwright.api.context import ApiContext
    from tickwright.engine.wakeup.on_demand import DirectAccess
    from tickwright.plugin import Context, Registrations, Settings
    from tickwright.process.installation import provide
    from tickwright.process.plugins import PLUGINS

    nothing: Any = _Nothing()
    installation = Context(Settings(), nothing, Registrations(), dict)
    installation.ports.put(DirectAccess, DirectAccess(None))
    provide(installation)
    api = create_app(ApiContext(PLUGINS, installation, nothing, nothing, version="0"))
    (serve,) = (
        one.endpoint for one in api.framework.routes if isinstance(one, Route) and one.path == "/v1/openapi.json"
    )
    made: dict[str, Any] = json.loads(asyncio.run(serve()).body)
    for component in made["components"]["schemas"].values():
        for name, field in component.get("properties", {}).items():
            if _ID.match(name):
                _as_text(field)
    operations = [operation for path in made["paths"].values() for operation in path.values()]
    schemas = made["components"]["schemas"]
    asked = _reached([operation.get("requestBody", {}) for operation in operations], schemas)
    for name in _reached([operation["responses"] for operation in operations], schemas) - asked:
        if "properties" in schemas[name]:  # an answer has all its fields, a request may leave some out
            schemas[name]["required"] = sorted(schemas[name]["properties"])
    for operation in operations:
        for parameter in operation.get("parameters", []):
            shapes = [parameter["schema"], *parameter["schema"].get("anyOf", [])]
            if _ID.match(parameter["name"]) or any(shape.get("maximum") == 2**63 - 1 for shape in shapes):
                _as_text(parameter["schema"])
    return made


def _reached(start: Any, schemas: dict[str, Any]) -> set[str]:
    """Return the names of the schemas that ``start`` refers to, and those that these refer to."""
    found: set[str] = set()
    looking = [start]
    while looking:
        names = set(_REFERENCE.findall(json.dumps(looking.pop()))) - found
        found |= names
        looking += [schemas[name] for name in names]
    return found


def _as_text(field: dict[str, Any]) -> None:
    if field.get("type") == "integer":
        field["type"] = "string"
        for bound in ("minimum", "maximum", "exclusiveMinimum", "default"):
            field.pop(bound, None)
    for inner in [*field.get("anyOf", []), *([field["items"]] if "items" in field else [])]:
        _as_text(inner)


def _opaque(document: dict[str, Any]) -> set[str]:
    """Return the names of fields that hold any JSON; inside them the page changes nothing."""
    found: set[str] = set()
    typed: set[str] = set()
    for component in document["components"]["schemas"].values():
        for name, field in component.get("properties", {}).items():
            shape = set(field) - {"description", "default", "title", "examples"}
            (typed if shape else found).add(name)
    return found


if __name__ == "__main__":
    sys.exit(main())
