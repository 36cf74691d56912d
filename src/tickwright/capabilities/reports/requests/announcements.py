"""Where a stage is announced: to every listener over the fanout exchange, to one under its own routing key, or nowhere.

Where there is no broker, due parts are claimed from the table at once; where there is one, after a grace, so that a
message that is lost, or a broker that is away, costs seconds.
"""

from dataclasses import dataclass

from tickwright.capabilities.reports.requests.messages import Announcement, write_call
from tickwright.capabilities.reports.types.plan import Plan
from tickwright.store.pool import Connection
from tickwright.store.queries import load

GRACE_S = 5.0
_RECORDS = load("tickwright.capabilities.reports.sql", "records.sql")


@dataclass(frozen=True, slots=True)
class Routes:
    """Destinations of the outbox; ``everyone`` is ``None`` where there is no broker.

    Attributes:
        everyone: Such as ``amqp:tickwright.reports/``.
        exchange: Whose routing keys are the listeners' names, such as ``tickwright.reports.listeners``.
    """

    everyone: str | None = None
    exchange: str | None = None

    @property
    def grace_s(self) -> float:
        """After how long a part that was announced may be claimed by whoever looks."""
        return 0.0 if self.everyone is None else GRACE_S

    def one(self, listener: str) -> str:
        """Return the destination that only ``listener`` hears."""
        return f"amqp:{self.exchange}/{listener}"


def served_by(kind: str, listener: str, source: str | None) -> str:
    """Return who can bring a part: a process with that function, or with that source, or the service of that name."""
    if kind == "sql":
        return f"source:{source}"
    return f"{kind}:{listener}"


async def tell_all(connection: Connection, routes: Routes, told: Announcement, plan: Plan) -> None:
    """Announce a stage to everybody who has a part in it, behind the commit of the caller's transaction."""
    if routes.everyone is not None:
        names = tuple(one.name for one in plan.listeners if one.stage == told.stage)
        key, message = f"report/{told.report_id}", write_call(told, names, 1)
        await connection.execute(_RECORDS["announce"], routes.everyone, key, message)
    await connection.execute(_RECORDS["ring"])
