/** Task types: their targets, current figures, and, for admins, settings. */
import { Button } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get } from "../../api/client";
import { updating } from "../../app/prefs";
import { useMay } from "../../app/session";
import { DataTable, type Column } from "../../parts/DataTable";
import { spoken } from "../../parts/Duration";
import { EmptyState } from "../../parts/EmptyState";
import { count, Figure, percent } from "../../parts/Figure";
import { Filters, TextFilter } from "../../parts/Filters";
import { Glyph } from "../../parts/Glyph";
import { Secret } from "../../parts/Secret";
import { StateBadge } from "../../parts/StateBadge";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { Queues } from "./Queues";
import { merged, stateOf, type Row } from "./rows";
import { TypeDrawer } from "./TypeDrawer";
import { TypeForm } from "./TypeForm";

const COLUMNS: Column<Row>[] = [
  { id: "name", header: "Task type", width: 210, cell: ({ name }) => <span title={name}>{name}</span> },
  { id: "state", header: "State", width: 110, cell: (row) => <StateBadge {...stateOf(row)} /> },
  { id: "queue", header: "Queue", width: 110, hide: "md", cell: ({ type }) => <span title={type?.queue}>{type?.queue ?? "–"}</span> },
  { id: "target", header: "Target", hide: "md", cell: ({ type }) => <span title={type?.target}>{type?.target ?? "not registered"}</span> },
  { id: "due", header: "Due", width: 92, align: "right", cell: ({ now, cap }) => (now ? count(now.due, cap) : "0") },
  { id: "oldest", header: "Oldest due", width: 100, align: "right", hide: "sm", cell: ({ now }) => (now && now.due > 0 ? spoken(now.oldest_due_s) : "–") },
  { id: "runs", header: "Running", width: 84, align: "right", hide: "sm", cell: ({ now, cap }) => (now ? count(now.processing, cap) : "0") },
  { id: "rate", header: "Started/s", width: 90, align: "right", hide: "sm", cell: ({ now }) => <Figure value={now?.started_per_s} as="rate" /> },
  { id: "failed", header: "Failed", width: 80, align: "right", hide: "sm", cell: ({ now }) => (now?.failure_share == null ? "–" : percent(now.failure_share)) },
  { id: "late", header: "Lateness p99", width: 112, align: "right", hide: "md", cell: ({ now }) => late(now) },
];

function late(now: Row["now"]): string {
  const value = now?.lateness?.p99_s;
  if (now?.lateness == null || value === undefined) return "–";
  return value === null ? "over 1 h" : `≤ ${spoken(value)}`;
}

export default function TaskTypesView() {
  const url = useUrl();
  const isAdmin = useMay("admin");
  const held = updating.use() === "held";
  const [creating, setCreating] = useState(false);
  const [secret, setSecret] = useState<string | null>(null);
  const types = useQuery({
    queryKey: ["task-types", "list"],
    queryFn: ({ signal }) => get("/v1/task-types", { signal }),
    refetchInterval: held ? false : 10_000,
  });
  const figures = useQuery({
    queryKey: ["task-types", "figures"],
    queryFn: ({ signal }) => get("/v1/task-types:figures", { signal }),
    refetchInterval: held ? false : 3_000,
  });
  const wanted = url.one("text").toLowerCase();
  const all = types.data && merged(types.data.items, figures.data);
  const rows = all?.filter((row) => row.name.toLowerCase().includes(wanted) || row.type?.target.toLowerCase().includes(wanted));
  const open = all?.find((row) => row.name === url.one("type"));
  return (
    <View
      title="Task types"
      actions={
        isAdmin && (
          <Button leftSection={<Glyph name="plus" size={12} />} onClick={() => setCreating(true)}>
            Create
          </Button>
        )
      }
    >
      <Filters names={["text"]}>
        <TextFilter name="text" label="Name or target" first width={240} />
      </Filters>
      <DataTable
        label="Task types by name"
        columns={COLUMNS}
        pages={{ rows, error: types.error, again: () => void types.refetch() }}
        rowKey={(row) => row.name}
        onOpen={(row) => url.set({ type: row.name }, true)}
        openKey={url.one("type")}
        empty={
          <EmptyState title={wanted ? "No task type matches" : "There is no task type"}>
            {wanted ? "Remove the filter." : "A worker registers the task types of its handlers; create others here or with tickwright task-types put."}
          </EmptyState>
        }
      />
      <Queues />
      <TypeDrawer name={url.one("type")} row={open} known={types.data !== undefined} onSecret={setSecret} onClose={() => url.set({ type: null })} />
      {creating && <TypeForm type={null} onClose={() => setCreating(false)} onSecret={setSecret} />}
      <Secret
        value={secret}
        title="Signing secret"
        text="It is shown only once. The receiver needs it to verify the signatures of callbacks."
        onClose={() => setSecret(null)}
      />
    </View>
  );
}
