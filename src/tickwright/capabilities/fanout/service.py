"""What operators and programs do with fan-out, in one object: one per process and pool."""

from tickwright.capabilities.fanout.dead_letters import DeadLetters
from tickwright.capabilities.fanout.entities.entities import Entities
from tickwright.capabilities.fanout.entities.imports import Imports
from tickwright.capabilities.fanout.entities.matrix import Matrix
from tickwright.capabilities.fanout.entities.modules import Modules
from tickwright.ports.dead_letters import DeadMessages
from tickwright.store.paging import Cursors
from tickwright.store.pool import Pool


class FanoutService:
    """Everything that the API and the command line do with fan-out.

    Attributes:
        entities: Whom we poll.
        modules: For what, and how often.
        imports: Entities by the thousand.
        dead_letters: Tasks that were given up.
        matrix: Modules against windows, and entities against modules.
    """

    def __init__(self, pool: Pool, dead_tasks: DeadMessages) -> None:
        self.entities = Entities(pool, Cursors(pool))
        self.modules = Modules(pool)
        self.matrix = Matrix(pool, self.entities)
        self.imports = Imports(pool)
        self.dead_letters = DeadLetters(pool, dead_tasks)
