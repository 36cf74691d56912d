/** Past slices in which a selected poll has no answer, newest first. */
import { DataTable, type Column } from "../../parts/DataTable";
import { count } from "../../parts/Figure";
import { Instant } from "../../parts/Instant";
import { useUrl } from "../../parts/useUrl";
import { Section } from "../../parts/View";
import { differs, type Cell, type Heat } from "./heat";

const COLUMNS: Column<Cell>[] = [
  { id: "from", header: "Slice", width: 170, cell: (cell) => <Instant at={cell.from_at} /> },
  { id: "expected", header: "Expected", align: "right", width: 90, hide: "sm", cell: (cell) => count(cell.expected) },
  { id: "selected", header: "Selected", align: "right", width: 90, cell: (cell) => count(cell.selected) },
  { id: "published", header: "Published", align: "right", width: 90, hide: "sm", cell: (cell) => count(cell.published) },
  { id: "polled", header: "Polled", align: "right", width: 90, hide: "sm", cell: (cell) => count(cell.polled) },
  { id: "unanswered", header: "Unanswered", align: "right", width: 100, cell: (cell) => count(cell.unanswered) },
  { id: "rest", header: "", cell: () => null },
];

export function Differences({ heat }: { heat: Heat }) {
  const url = useUrl();
  const nowMs = Date.parse(heat.now);
  const rows = heat.cells.filter((cell) => differs(cell, nowMs, heat.step_minutes * 60_000)).toReversed();
  if (rows.length === 0) return null;
  return (
    <Section title={`Slices with a difference: ${count(rows.length)}`}>
      <DataTable
        label="Slices with a difference, newest first"
        columns={COLUMNS}
        pages={{ rows, error: null }}
        rowKey={(cell) => cell.from_at}
        onOpen={(cell) => url.set({ slice: new Date(cell.from_at).toISOString() })}
        openKey={null}
        empty={null}
        grows
      />
    </Section>
  );
}
