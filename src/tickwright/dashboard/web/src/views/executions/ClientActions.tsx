/** The actions of an execution, one per client, and whether each is released. */
import { get, type Schemas } from "../../api/client";
import { DataTable, type Column } from "../../parts/DataTable";
import { Filters, TextFilter } from "../../parts/Filters";
import { StateBadge } from "../../parts/StateBadge";
import { usePages } from "../../parts/usePages";
import { useUrl } from "../../parts/useUrl";
import { pretty } from "../../api/json";
import classes from "./executions.module.css";

type Action = Schemas["ActionView"];
const COLUMNS: Column<Action>[] = [
  { id: "client", header: "Client", width: 140, cell: (one) => <span title={one.client_id}>{one.client_id}</span> },
  { id: "chunk", header: "Chunk", width: 70, align: "right", hide: "sm", cell: (one) => one.chunk },
  { id: "state", header: "Action", width: 110, cell: (one) => (one.released ? <StateBadge state="released" tone="good" /> : <StateBadge state="recorded" tone="idle" />) },
  { id: "data", header: "Data", cell: (one) => <ClientData of={one} /> },
];

function ClientData({ of: one }: { of: Action }) {
  if (one.payload_hidden) return <span className={classes.quiet}>hidden</span>;
  const text = pretty(one.client).replace(/\s*\n\s*/g, " ");
  return <span title={text}>{text}</span>;
}

export function ClientActions({ execution: one }: { execution: Schemas["ExecutionDetail"] }) {
  const url = useUrl();
  const client = url.one("client") || undefined;
  const pages = usePages({
    queryKey: ["executions", "actions", one.id, client, one.actions, one.chunks_released],
    load: (cursor, signal) => get("/v1/executions/{execution_id}/actions", { path: { execution_id: one.id }, query: { client_id: client, cursor, limit: 50 }, signal }),
    every: false,
  });
  const none = client === undefined ? "It has selected no client so far." : `No action for ${client}: not selected, or not read yet.`;
  return (
    <div className={classes.actions}>
      <Filters names={["client"]}>
        <TextFilter name="client" label="Client" placeholder="the whole key" width={220} />
      </Filters>
      <DataTable label="Actions by client" grows columns={COLUMNS} pages={pages} rowKey={(action) => action.client_id} empty={<p className={classes.none}>{none}</p>} />
    </div>
  );
}
