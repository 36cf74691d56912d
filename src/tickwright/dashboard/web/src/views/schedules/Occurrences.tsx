/** The next occurrences of a schedule: when their jobs are due, on the schedule's own clocks, and where these change. */
import type { Schemas } from "../../api/client";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { Instant } from "../../parts/Instant";

type Occurrence = Schemas["OccurrenceView"];

const COLUMNS: Column<Occurrence>[] = [
  { id: "at", header: "Due", cell: ({ at }) => <Instant at={at} /> },
  { id: "local", header: "On its clocks", width: 190, cell: ({ local }) => local.replace("T", " ").replace(/\.\d+/, "") },
  { id: "change", header: "Clocks", width: 80, cell: ({ clock_change: change }) => change ?? "" },
];

export function Occurrences({ of: occurrences, label }: { of: readonly Occurrence[]; label: string }) {
  return (
    <DataTable
      label={label}
      grows
      columns={COLUMNS}
      pages={{ rows: [...occurrences], error: null }}
      rowKey={(one) => one.slot_at}
      empty={<EmptyState title="There is no further occurrence">A paused schedule has none, nor one whose times are over.</EmptyState>}
    />
  );
}
