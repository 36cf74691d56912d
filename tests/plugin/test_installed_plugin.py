"""A capability from an installed package: its entry point gives it a role, settings, a table, a rule and a route."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tickwright.domain.errors import Rejected
from tickwright.plugin import Plugin
from tickwright.process import plugins

PACKAGE = '''
"""A capability that greets: it repeats the greetings of the TOML file."""

from tickwright.observe.alerts import AlertRule
from tickwright.plugin import Plugin, SettingsPart


class GreetingSettings(SettingsPart):
    greeting_language: str = "en"


def read_greeting(name, table, problems, *, where):
    if "text" not in table:
        problems.append(f"{where}.text: missing")


def greetings_part():
    import msgspec
    from tickwright.observe.metrics import Sample
    from tickwright.plugin.overview import OverviewPart, Shown

    class GreetingsNow(msgspec.Struct):
        spoken: int
        per_s: float | None

    class GreetingsPart(OverviewPart):
        fields = {"greetings": GreetingsNow}
        counters = {"greetings": dict[str, int]}
        dead_letters = {"greetings": int}
        series = {"greetings_spoken": int}
        lists = ("greetings",)

        def readings(self):
            return {"greetings": self.read}

        async def read(self, connection):
            return await connection.fetchval("SELECT 42")

        def show(self, read, rates):
            spoken = read["greetings"]
            now = GreetingsNow(spoken, rates.per_s(lambda counters: counters.greetings.get("spoken", 0)))
            return Shown({"greetings": now}, {"greetings": now}, {"greetings": 7}, {"greetings_spoken": spoken})

        async def gauges(self, connection):
            return [Sample("greetings_spoken", await self.read(connection))]

    return GreetingsPart()


class Greetings(Plugin):
    name = "greetings"
    roles = ("greeter",)
    settings = GreetingSettings
    commands = {"greetings": "greetings_cli"}

    def overview(self):
        return greetings_part()

    def holdings(self):
        sql = "SELECT 'greeting' AS kind, $1::bigint AS id, 'hello' AS name, NULL::integer AS number, now() AS since_at"
        return (f"{sql}, NULL::bigint AS fence, NULL::bigint AS count LIMIT $2",)

    async def examine(self, context, alive):
        from tickwright.plugin.findings import role_finding

        return (role_finding(alive, "greeter", "no greeting is sent"),)

    def config_tables(self):
        return {"greetings": read_greeting}

    def alert_rules(self):
        sql = "SELECT 'x' AS subject, '{}' AS facts WHERE false"
        return (AlertRule("greeter_silent", "warning", "No greeter is alive.", sql=sql),)

    def routes(self, context, gate):
        from fastapi import APIRouter, Depends
        from tickwright.ports.caller import Role

        router = APIRouter(tags=["greetings"])

        @router.get("/v1/greetings", dependencies=[Depends(gate.allow(Role.VIEWER))])
        async def greetings():
            language = context.settings.part(GreetingSettings).greeting_language
            texts = {name: one["text"] for name, one in context.tables("greetings").items()}
            return {"language": language, "greetings": texts}

        return (router,)


PLUGIN = Greetings()
'''
COMMANDS = '''
"""The command of greetings."""

import typer

from tickwright.cli.kit.gateway import ask
from tickwright.cli.kit.output import write

app = typer.Typer(help="Greetings of the TOML file.", no_args_is_help=True)


@app.callback()
def greetings():
    """Greetings of the TOML file."""


@app.command("list")
def list_():
    """List them."""
    write("".join(f"{name}: {text}\\n" for name, text in ask("GET", "/greetings")["greetings"].items()))
'''
ASK = """
import asyncio, json
from tickwright.ports.caller import CALLER, Caller, Role
from tickwright.process.api import local_api
from tickwright.process.installation import alert_rules
from tickwright.process.plugins import ROLES
from tickwright.process.settings import load_settings, unknown_names

async def call(app, path):
    said = []
    async def receive():
        return {"type": "http.request", "body": b""}
    async def send(message):
        said.append(message)
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "path": path, "raw_path": path.encode(), "headers": [],
        "query_string": b"", "root_path": "", "scheme": "http", CALLER: Caller("test", Role.ADMIN),
    }
    await app(scope, receive, send)
    return json.loads(said[1]["body"])

async def work():
    rules = [rule.name for rule in alert_rules()]
    async with local_api(load_settings()) as app:
        answer = await call(app, "/v1/greetings")
        overview = await call(app, "/v1/overview")
        document = await call(app, "/v1/openapi.json")
    seen = {"overview": overview, "document": document}
    print(json.dumps({**seen, "roles": ROLES, "rules": rules, "answer": answer, "unknown": unknown_names()}))

asyncio.run(work())
"""


@pytest.fixture
def environment(tmp_path: Path, database_url: str) -> dict[str, str]:
    """The environment of a process in which the package is installed."""
    (tmp_path / "greetings.py").write_text(PACKAGE)
    (tmp_path / "greetings_cli.py").write_text(COMMANDS)
    info = tmp_path / "greetings-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greetings\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tickwright.capabilities]\ngreetings = greetings:PLUGIN\n")
    config = tmp_path / "tickwright.toml"
    config.write_text('[greetings.morning]\ntext = "Good morning"\n')
    path = os.pathsep.join([str(tmp_path), *sys.path])
    return {
        **os.environ,
        "PYTHONPATH": path,
        "TICKWRIGHT_DATABASE_URL": database_url,
        "TICKWRIGHT_CONFIG": str(config),
        "TICKWRIGHT_GREETING_LANGUAGE": "de",
    }


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with ``words``."""
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)


def test_an_installed_capability_is_a_part_of_the_product(environment: dict[str, str]) -> None:
    """Its role is a command, its variable and its table are read, its rule is evaluated, its route is served."""
    said = run(environment, "-m", "tickwright", "greeter", "--help")
    assert said.returncode == 0, said.stderr
    said = run(environment, "-c", ASK)
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout.splitlines()[-1])
    assert "greeter" in found["roles"]
    assert "greeter_silent" in found["rules"]
    assert found["answer"] == {"language": "de", "greetings": {"morning": "Good morning"}}
    assert "TICKWRIGHT_GREETING_LANGUAGE" not in found["unknown"]


def test_its_part_of_the_overview_and_its_command_are_those_of_the_product(environment: dict[str, str]) -> None:
    """Its figures, list, series and dead letters are beside the others; its command and its finding too."""
    said = run(environment, "-c", ASK)
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout.splitlines()[-1])
    overview = found["overview"]
    assert overview["greetings"] == {"spoken": 42, "per_s": 0.0}
    assert overview["dead_letters"] == {"jobs": 0, "outbox": 0, "fanout": None, "greetings": 7}
    assert overview["series"]["greetings_spoken"] == [42]
    assert {"greetings", "jobs"} <= overview["changes"].keys()
    assert "GreetingsNow" in found["document"]["components"]["schemas"]
    said = run(environment, "-m", "tickwright", "greetings", "list")
    assert said.stdout == "morning: Good morning\n", said.stderr
    said = run(environment, "-m", "tickwright", "doctor", "--json")
    assert "none is alive: no greeting is sent" in said.stdout, said.stderr


def test_a_part_that_always_fails_is_named_in_the_terminal(environment: dict[str, str], tmp_path: Path) -> None:
    """Its field is ``null``; ``top`` shows the figures of the others."""
    (tmp_path / "greetings.py").write_text(PACKAGE.replace('spoken = read["greetings"]', 'spoken = read["missing"]'))
    said = run(environment, "-m", "tickwright", "top")
    assert said.returncode == 0, said.stderr
    assert "greetings: unavailable" in said.stdout
    assert "waiting 0 · due 0" in said.stdout
    assert "overview.part_failed" in said.stderr


@pytest.mark.parametrize("method", ["def provide(self, context):", "async def examine(self, context, alive):"])
def test_the_doctor_names_a_plugin_that_fails_and_shows_the_others(
    environment: dict[str, str], tmp_path: Path, method: str
) -> None:
    """One finding for the plugin, one for a broker whose settings are wrong, and those of the others."""
    failing = f"{method}\n        raise KeyError('bad')\n\n    def config_tables(self):"
    package = PACKAGE.replace("async def examine(self, context, alive):", "async def examined(self, context, alive):")
    (tmp_path / "greetings.py").write_text(package.replace("def config_tables(self):", failing))
    env = {**environment, "TICKWRIGHT_KAFKA_BOOTSTRAP": "127.0.0.1:1", "TICKWRIGHT_AMQP_URL": "amqp://127.0.0.1:1/"}
    said = run({**env, "TICKWRIGHT_KAFKA_REPLICATION": "1"}, "-m", "tickwright", "doctor", "--json")
    found = {one["check"]: one for one in json.loads(said.stdout)["findings"]}
    assert (said.returncode, found["greetings"]["verdict"], found["kafka"]["verdict"]) == (1, "fail", "fail")
    assert "KeyError('bad')" in found["greetings"]["says"]
    assert "TICKWRIGHT_KAFKA" in found["kafka"]["says"]
    assert found["rabbitmq"]["says"] == "does not answer"
    assert {"worker", "scheduler", "roles"} <= found.keys()
    assert "Task was destroyed" not in said.stderr


def test_a_mistake_in_its_table_is_reported_with_those_of_the_others(environment: dict[str, str]) -> None:
    """The file is refused whole, with the place of each mistake."""
    Path(environment["TICKWRIGHT_CONFIG"]).write_text("[greetings.evening]\n[modules.x]\n")
    said = run(environment, "-m", "tickwright", "run", "greeter")
    assert said.returncode == 2
    assert "greetings.evening.text: missing" in said.stderr
    assert "modules.x" in said.stderr


@pytest.mark.parametrize(
    ("package", "why"),
    [
        ("PLUGIN = 'hello'", "is not a tickwright.plugin.Plugin"),
        ("import missing_of_greetings", "missing_of_greetings"),
        (PACKAGE.replace('{"greetings": "greetings_cli"}', '{"jobs": "greetings_cli"}'), "have the command 'jobs'"),
    ],
)
def test_a_broken_package_stops_the_start(environment: dict[str, str], tmp_path: Path, package: str, why: str) -> None:
    """A process without a capability that its operator installed would leave its work undone."""
    (tmp_path / "greetings.py").write_text(package)
    said = run(environment, "-m", "tickwright", "--version")
    assert said.returncode == 2
    assert said.stderr.startswith("tickwright: ")
    assert why in said.stderr
    assert "(invalid_plugin)" in said.stderr


@pytest.mark.parametrize("commands", ["import missing_of_greetings", "APP = 1"])
def test_commands_that_cannot_be_loaded_are_refused_alone(
    environment: dict[str, str], tmp_path: Path, commands: str
) -> None:
    """The error names the plugin and the module; the help and the other commands work."""
    (tmp_path / "greetings_cli.py").write_text(commands)
    said = run(environment, "-m", "tickwright", "--help")
    assert (said.returncode, "greetings" in said.stdout, "jobs" in said.stdout) == (0, True, True), said.stderr
    said = run(environment, "-m", "tickwright", "greetings", "list", "--json")
    assert said.returncode == 2
    error = json.loads(said.stderr)["error"]
    assert error["code"] == "invalid_plugin"
    assert "plugin greetings: its commands in greetings_cli cannot be loaded" in error["message"]
    assert run(environment, "-m", "tickwright", "jobs", "list").returncode == 0


def test_a_name_that_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two plugins of one name neither could be told from the other."""

    class Second(Plugin):
        name = "jobs"

    monkeypatch.setattr(plugins, "_plugins", lambda: iter([("here", Second()), ("there", Second())]))
    with pytest.raises(Rejected, match="there is a plugin named 'jobs' already"):
        plugins.load_plugins()
