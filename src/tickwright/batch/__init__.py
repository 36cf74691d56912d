"""Producer, database, consumer: occurrences become executions, executions chunks, chunks actions; see README.md."""
