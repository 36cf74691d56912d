"""What the example's hub says of its providers."""

from io import StringIO

from rich.console import Console

from tickwright.demo.hub import Provider, draw_hub, find_hub, hub_line
from tickwright.plugin.settings import Settings

PROVIDERS = [
    Provider("DE.SLO", 2.14, 12.0, 0),
    Provider("NL.ONE", None, 2.4, 0),
    Provider("NL.TWO", None, None, 0),
    Provider("NL.TRE", 0.1, 30.0, 3),
]


def test_a_provider_is_asked_now_or_was_or_fails() -> None:
    """One line, also for a terminal, and failures before everything else."""
    said = hub_line(PROVIDERS)
    assert said == (
        "hub: DE.SLO is asked for 2.1 s · NL.ONE asked 2 s ago · NL.TWO not asked yet · NL.TRE failed 3 times"
    )
    screen = Console(file=StringIO(), width=200)
    screen.print(draw_hub(PROVIDERS))
    drawn = screen.file.getvalue()  # type: ignore[attr-defined]
    assert all(part in drawn for part in said.removeprefix("hub: ").split(" · "))


async def test_without_rabbitmq_the_example_says_how_to_get_its_hub() -> None:
    """One line that names the variable; where no server answers, it says so without the password."""
    found, why = await find_hub(Settings(amqp_url=None))
    assert not found
    assert "TICKWRIGHT_AMQP_URL" in why
    found, why = await find_hub(Settings(amqp_url="amqp://guest:hidden@127.0.0.1:1/"))
    assert not found
    assert "RabbitMQ" in why
    assert "hidden" not in why
