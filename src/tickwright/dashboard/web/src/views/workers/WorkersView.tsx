/** Worker sessions of the last day: their state and figures, and the drain. */
import { useQuery } from "@tanstack/react-query";
import { get, type Schemas } from "../../api/client";
import { updating } from "../../app/prefs";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { count } from "../../parts/Figure";
import { ChoiceFilter, Filters, TextFilter } from "../../parts/Filters";
import { Instant } from "../../parts/Instant";
import { StateBadge } from "../../parts/StateBadge";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { jobsOf, stateOf } from "./facts";
import { WorkerDrawer } from "./WorkerDrawer";

type Worker = Schemas["WorkerView"];

const COLUMNS: Column<Worker>[] = [
  { id: "id", header: "Id", width: 80, hide: "sm", cell: (one) => one.id },
  { id: "name", header: "Process", width: 190, cell: (one) => <span title={one.name}>{one.name}</span> },
  { id: "state", header: "State", width: 110, cell: (one) => <StateBadge {...stateOf(one)} /> },
  { id: "roles", header: "Roles", hide: "sm", cell: (one) => <span title={one.roles.join(", ")}>{one.roles.join(", ")}</span> },
  { id: "running", header: "Running", width: 90, align: "right", cell: (one) => jobFigure(one, "running") },
  { id: "starts", header: "Starts", width: 90, align: "right", hide: "md", cell: (one) => jobFigure(one, "starts") },
  { id: "up", header: "Started", width: 130, hide: "md", cell: (one) => <Instant at={one.started_at} ago /> },
  { id: "seen", header: "Last seen", width: 100, hide: "sm", cell: (one) => <Instant at={one.seen_at} ago /> },
  { id: "version", header: "Version", width: 80, hide: "md", cell: (one) => one.version },
];

function jobFigure(worker: Worker, name: "running" | "starts"): string {
  const jobs = jobsOf(worker);
  return jobs === null ? "–" : count(jobs[name]);
}

/** Whether a session is in a state; a draining session is also alive. */
function isIn(state: string, worker: Worker): boolean {
  const its = stateOf(worker).state;
  return state === "" || its === state || (state === "alive" && its === "draining");
}

export default function WorkersView() {
  const url = useUrl();
  const held = updating.use() === "held";
  const found = useQuery({ queryKey: ["workers", "all"], queryFn: ({ signal }) => get("/v1/workers", { signal }), refetchInterval: held ? false : 5_000 });
  const all = found.data?.items;
  const text = url.one("text").toLowerCase();
  const [role, state] = [url.one("role"), url.one("state")];
  const rows = all?.filter(
    (one) => one.name.toLowerCase().includes(text) && (role === "" || one.roles.includes(role)) && isIn(state, one),
  );
  const roles = [...new Set((all ?? []).flatMap((one) => one.roles))].sort();
  return (
    <View title="Workers">
      <Filters names={["text", "role", "state"]}>
        <TextFilter name="text" label="Process" placeholder="part of its name" first />
        <ChoiceFilter name="role" label="Role" names options={roles} />
        <ChoiceFilter name="state" label="State" all="All of the last day" options={["alive", "draining", "lost", "gone"]} />
      </Filters>
      <DataTable
        label="Worker sessions, newest first"
        columns={COLUMNS}
        pages={{ rows, error: found.error, again: () => void found.refetch() }}
        rowKey={(one) => one.id}
        onOpen={(one) => url.set({ worker: one.id }, true)}
        openKey={url.one("worker")}
        empty={
          all?.length === 0 ? (
            <EmptyState title="No process has run within a day">Start one: <code>tickwright run worker scheduler relay</code>.</EmptyState>
          ) : (
            <EmptyState title="No session matches">Remove a filter; sessions are kept for a day.</EmptyState>
          )
        }
      />
      <WorkerDrawer id={url.one("worker")} onClose={() => url.set({ worker: null })} />
    </View>
  );
}
