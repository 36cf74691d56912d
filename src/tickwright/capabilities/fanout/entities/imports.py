"""Entities by the thousand: NDJSON or CSV, one entity per line, in constant memory.

Each line sets its entity whole, as a put does. Of two lines with one code the later one counts; the same file again
changes nothing. How lines are read and committed is :mod:`tickwright.engine.bulk_import`.
"""

from collections.abc import AsyncIterator, Callable, Sequence

from tickwright.capabilities.fanout.entities import store
from tickwright.capabilities.fanout.entities.requests import NewEntity, entity_of_row, read_columns, read_line
from tickwright.domain.lines import ImportResult, csv_reader
from tickwright.engine.bulk_import import BatchedImport
from tickwright.ports.caller import Caller
from tickwright.store.pool import Connection, Pool

BATCH_ROWS_MAX = 1_000


class Imports:
    """Streams of entities into the table."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def run(self, chunks: AsyncIterator[bytes], *, caller: Caller, as_csv: bool = False) -> ImportResult:
        """Import a stream.

        Args:
            chunks: Bytes as they come; what it raises (never an ``OSError``) ends the import and passes through.
            caller: For the audit trail.
            as_csv: CSV with a line of columns instead of NDJSON.

        Raises:
            Rejected: ``invalid_columns`` (400): the first line of a CSV file names others. Permanent.
            Unavailable: ``import_interrupted`` with ``committed_lines``. Send it again.
        """
        read = csv_reader(read_columns, entity_of_row) if as_csv else read_line
        return await _EntityImport(self._pool, caller, read).run(chunks)


class _EntityImport(BatchedImport[NewEntity]):
    """One import under way."""

    def __init__(self, pool: Pool, caller: Caller, read: Callable[[bytes], NewEntity | None]) -> None:
        super().__init__(pool, caller, action="entities.import", subject="entities", rows_max=BATCH_ROWS_MAX)
        self._read_line = read
        self._modules: frozenset[str] = frozenset()
        self._partners: frozenset[str] = frozenset()

    async def _learn(self, connection: Connection) -> None:
        self._modules, self._partners = await store.known_names(connection)

    async def _thing(self, line: bytes, _number: int) -> NewEntity | None:
        entity = self._read_line(line)
        if entity is not None:
            store.check_known(entity, self._modules, partner=entity.partner is None or entity.partner in self._partners)
        return entity

    async def _write(self, connection: Connection, batch: Sequence[NewEntity]) -> None:
        newest = {entity.code: entity for entity in batch}
        created = await store.put_many(connection, [*newest.values()]) if newest else 0
        self.result.created += created
        self.result.existing += len(batch) - created
