/** An execution as a row: progress, selected clients, released actions. */
import type { Schemas } from "../../api/client";
import type { Column } from "../../parts/DataTable";
import { count } from "../../parts/Figure";
import { Instant } from "../../parts/Instant";
import { StateBadge } from "../../parts/StateBadge";

export type Execution = Schemas["ExecutionView"];
export const STATUSES = ["NEW", "IN_PROGRESS", "FINISHED", "EXCEPTION_OCCURRED", "STOPPED", "DISABLED"] as const;
const TONES = { NEW: "idle", IN_PROGRESS: "busy", FINISHED: "good", EXCEPTION_OCCURRED: "bad", STOPPED: "warn", DISABLED: "idle" } as const;

export function ExecutionState({ of: one }: { of: Pick<Execution, "status" | "paused_at"> }) {
  const open = one.status === "NEW" || one.status === "IN_PROGRESS";
  if (open && one.paused_at !== null) return <StateBadge state="paused" tone="warn" />;
  return <StateBadge state={one.status} tone={STATUSES.flatMap((status) => (status === one.status ? [TONES[status]] : []))[0] ?? "idle"} />;
}

export const EXECUTION_COLUMNS: Column<Execution>[] = [
  { id: "id", header: "Id", width: 90, cell: (one) => one.id },
  { id: "name", header: "Campaign or batch", cell: (one) => <span title={one.name}>{one.name}</span> },
  { id: "status", header: "Status", width: 164, cell: (one) => <ExecutionState of={one} /> },
  { id: "slot", header: "Slot", width: 160, hide: "sm", cell: (one) => <Instant at={one.slot_at} /> },
  { id: "chunks", header: "Chunks", width: 92, align: "right", hide: "sm", cell: (one) => (one.planned_at === null ? "–" : `${count(one.chunks_done)}/${count(one.chunks)}`) },
  { id: "selected", header: "Selected", width: 88, align: "right", cell: (one) => count(one.selected) },
  { id: "released", header: "Released", width: 88, align: "right", hide: "sm", cell: (one) => count(one.released) },
  { id: "skipped", header: "Skipped", width: 80, align: "right", hide: "md", cell: (one) => count(one.skipped) },
];
