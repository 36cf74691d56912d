/** The list of campaigns or of batches, with its filters and its drawer. */
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { ChoiceFilter, Filters, TextFilter } from "../../parts/Filters";
import { Instant } from "../../parts/Instant";
import { StateBadge } from "../../parts/StateBadge";
import { usePages } from "../../parts/usePages";
import { useUrl } from "../../parts/useUrl";
import { ExecutionState } from "../executions/columns";
import { BatchDrawer } from "./BatchDrawer";
import { filterOf, listOf, STATUSES, TYPES, type Batch, type Kind } from "./kind";

const NAMES = ["q", "type", "status"] as const;
const NONE: Record<Kind, string> = {
  campaigns: "Create one here, with tickwright campaigns put FILE, or with app.put_campaign.",
  batches: "Define one in a program: a function with @app.batch, in a process with the role campaign-consumer.",
};

const COLUMNS: Column<Batch>[] = [
  { id: "name", header: "Name", cell: (one) => <span title={one.name}>{one.name}</span> },
  { id: "status", header: "Status", width: 110, cell: (one) => <StateBadge state={one.status} tone={one.status === "SCHEDULED" ? "good" : "idle"} /> },
  { id: "type", header: "Type", width: 100, hide: "md", cell: (one) => one.type.toLowerCase() },
  { id: "next", header: "Next run", width: 140, cell: (one) => <Instant at={one.status === "SCHEDULED" ? one.next_slot_at : null} ago /> },
  { id: "open", header: "Open", width: 64, align: "right", hide: "sm", cell: (one) => one.open_executions },
  { id: "last", header: "Last execution", width: 180, hide: "sm", cell: (one) => (one.last_status === null ? "–" : <ExecutionState of={{ status: one.last_status, paused_at: null }} />) },
  { id: "when", header: "Last slot", width: 130, hide: "md", cell: (one) => <Instant at={one.last_slot_at} ago /> },
  { id: "products", header: "Products", width: 140, hide: "md", cell: (one) => <span title={one.product_codes.join(", ")}>{one.product_codes.join(", ")}</span> },
  { id: "version", header: "Version", width: 76, align: "right", hide: "md", cell: (one) => one.version },
];

export function BatchList({ kind }: { kind: Kind }) {
  const url = useUrl();
  const filter = filterOf(url);
  const filtered = NAMES.some((name) => url.one(name) !== "");
  const what = kind === "campaigns" ? "campaign" : "batch of a program";
  const pages = usePages({ queryKey: [kind, "list", filter], load: (cursor, signal) => listOf(kind, { ...filter, cursor, limit: 100 }, signal) });
  return (
    <>
      <Filters names={NAMES}>
        <TextFilter name="q" label="Name" placeholder="begins with" width={240} first />
        <ChoiceFilter name="status" label="Status" options={STATUSES.map((value) => ({ value, label: value.toLowerCase() }))} width={140} />
        <ChoiceFilter name="type" label="Type" options={TYPES.map((value) => ({ value, label: value.toLowerCase() }))} width={140} />
      </Filters>
      <DataTable
        label={kind === "campaigns" ? "Campaigns by name" : "Batches of programs by name"}
        columns={COLUMNS}
        pages={pages}
        rowKey={(one) => one.name}
        onOpen={(one) => url.set({ name: one.name }, true)}
        openKey={url.one("name")}
        empty={
          <EmptyState title={filtered ? `No ${what} matches` : `There is no ${what}`}>
            {filtered ? "Remove a filter. The filter Name compares the beginning." : NONE[kind]}
          </EmptyState>
        }
      />
      <BatchDrawer kind={kind} name={url.one("name")} onClose={() => url.set({ name: null, version: null, slot: null })} />
    </>
  );
}
