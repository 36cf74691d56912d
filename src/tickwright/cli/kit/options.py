"""Options that many commands share."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Cursor = Annotated[str | None, typer.Option(help="From the page before.")]
Limit = Annotated[int, typer.Option(min=1, max=200, help="Rows at most.")]
JobId = Annotated[int, typer.Argument(min=1, max=2**63 - 1, metavar="ID", help="The job's id.")]
TrackerId = Annotated[int, typer.Argument(min=1, max=2**63 - 1, metavar="ID", help="The tracker's id.")]
JobIds = Annotated[list[int] | None, typer.Option("--id", min=1, max=2**63 - 1, help="May be given several times.")]
Since = Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339 with its offset; inclusive.")]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339 with its offset; exclusive.")]
At = Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339 with its offset, 2030-01-31T09:00:00Z.")]
In = Annotated[str | None, typer.Option("--in", metavar="DURATION", help='From the database\'s now, such as "30s".')]
