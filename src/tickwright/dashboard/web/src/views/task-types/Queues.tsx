/** The queues of the task types: their jobs, the workers that serve them, and their pauses. */
import { Button } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { get, post, type Schemas } from "../../api/client";
import { updating } from "../../app/prefs";
import { useMay } from "../../app/session";
import { useConfirm } from "../../parts/Confirm";
import { DataTable, type Column } from "../../parts/DataTable";
import { count } from "../../parts/Figure";
import { StateBadge, type Tone } from "../../parts/StateBadge";
import { useAction } from "../../parts/useAction";
import { Section } from "../../parts/View";

type Queue = Schemas["QueueView"];

const COLUMNS: Column<Queue>[] = [
  { id: "name", header: "Queue", width: 210, cell: ({ name }) => <span title={name}>{name}</span> },
  { id: "state", header: "State", width: 110, cell: (queue) => <StateBadge {...stateOf(queue)} /> },
  { id: "types", header: "Task types", hide: "sm", cell: ({ types }) => <span title={types.join(", ")}>{types.join(", ")}</span> },
  { id: "due", header: "Due", width: 92, align: "right", cell: ({ due }) => count(due) },
  { id: "running", header: "Running", width: 84, align: "right", cell: ({ running }) => count(running) },
  { id: "workers", header: "Workers", width: 84, align: "right", hide: "sm", cell: ({ workers }) => count(workers) },
  { id: "switch", header: "", width: 100, align: "right", cell: (queue) => <Switch queue={queue} /> },
];

function stateOf({ paused_at, types, workers }: Queue): { state: string; tone: Tone } {
  if (paused_at !== null) return { state: "paused", tone: "warn" };
  return workers === 0 && types.length > 0 ? { state: "not served", tone: "bad" } : { state: "enabled", tone: "good" };
}

/** The list, where there is more than the default queue or where that one is paused. */
export function Queues() {
  const held = updating.use() === "held";
  const found = useQuery({ queryKey: ["queues", "list"], queryFn: ({ signal }) => get("/v1/queues", { signal }), refetchInterval: held ? false : 5_000 });
  const rows = found.data?.items;
  if (rows === undefined || rows.every((queue) => queue.name === "default" && queue.paused_at === null)) return null;
  return (
    <Section title="Queues">
      <DataTable label="Queues by name" columns={COLUMNS} pages={{ rows, error: found.error }} rowKey={(queue) => queue.name} empty={null} grows />
    </Section>
  );
}

function Switch({ queue }: { queue: Queue }) {
  const may = useMay("operator");
  const confirm = useConfirm();
  const waits = queue.paused_at !== null;
  const path = { name: queue.name };
  const action = useAction({
    run: () => (waits ? post("/v1/queues/{name}/enable", { path }) : post("/v1/queues/{name}/pause", { path })),
    message: () => `${queue.name} ${waits ? "is enabled" : "is paused"}`,
    invalidates: ["queues", "task-types", "jobs"],
  });
  async function ask(): Promise<void> {
    const question = waits
      ? { title: "Enable 1 queue?", text: `Jobs of ${queue.name} that are due start at once, within their limits.`, does: "Enable" }
      : { title: "Pause 1 queue?", text: `Jobs of the ${count(queue.types.length)} task types of ${queue.name} wait until it is enabled; running jobs continue.`, does: "Pause", danger: true };
    if (await confirm(question)) action.mutate();
  }
  return (
    may && (
      <Button size="compact-sm" variant="default" loading={action.isPending} onClick={() => void ask()} aria-label={`${waits ? "Enable" : "Pause"} ${queue.name}`}>
        {waits ? "Enable" : "Pause"}
      </Button>
    )
  );
}
