/** The nodes of a workflow as a table: all, those of a state, or those of a box of the graph. */
import { Button } from "@mantine/core";
import { useLocation } from "wouter";
import { get, type Schemas } from "../../api/client";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { count } from "../../parts/Figure";
import { Filters, TextFilter } from "../../parts/Filters";
import { StateBadge } from "../../parts/StateBadge";
import { useParameterCheck } from "../../parts/ParameterChecks";
import { usePages } from "../../parts/usePages";
import { useUrl } from "../../parts/useUrl";
import { nameOf, type GraphGroup } from "./Graph";
import { STATES, total, type Counts } from "./states";
import classes from "./workflows.module.css";

type Node = Schemas["GraphNode"];

const COLUMNS: Column<Node>[] = [
  { id: "id", header: "Id", width: 110, cell: (node) => node.id },
  { id: "name", header: "Name", cell: (node) => <span title={node.name}>{node.name}</span> },
  { id: "state", header: "State", width: 120, cell: (node) => <StateBadge state={node.status} /> },
  { id: "type", header: "Task type", width: 220, hide: "sm", cell: (node) => (node.is_workflow ? "workflow" : <span title={node.task_type ?? ""}>{node.task_type}</span>) },
  { id: "failed", header: "If what it waits for fails", width: 190, hide: "md", cell: (node) => POLICIES[node.on_failed] },
];
const POLICIES: Readonly<Record<string, string>> = { cancel: "is cancelled", wait: "waits for its retry", run: "runs", only: "runs only then" };

interface Props {
  id: string;
  states: Counts;
  group: GraphGroup | undefined;
}

export function Nodes({ id, states, group }: Props) {
  const url = useUrl();
  const [, go] = useLocation();
  useParameterCheck("state", "State", STATES);
  const state = STATES.find((one) => one === url.one("state"));
  const query = { ...(state === undefined ? {} : { status: [state] }), ...(group === undefined ? {} : { group: group.id }), q: url.one("q") };
  const pages = usePages({
    queryKey: ["workflows", "nodes", id, query],
    load: (cursor, signal) => get("/v1/workflows/{workflow_id}/nodes", { path: { workflow_id: id }, query: { ...query, cursor, limit: 100 }, signal }),
  });
  const counts = group?.states ?? states;
  return (
    <>
      <div className={classes.tabs} role="group" aria-label="State">
        {(["", ...STATES.filter((one) => one !== "running" || counts[one] !== undefined)] as const).map((one) => (
          <button key={one} type="button" className={classes.tab} aria-pressed={(state ?? "") === one} onClick={() => url.set({ state: one })}>
            {one === "" ? "all" : one} <span>{count(one === "" ? total(counts) : (counts[one] ?? 0))}</span>
          </button>
        ))}
        {group !== undefined && (
          <Button variant="subtle" size="compact-sm" onClick={() => url.set({ group: null })}>
            {`Only ${nameOf(group)}: show all`}
          </Button>
        )}
      </div>
      <Filters names={["q"]}>
        <TextFilter name="q" label="Name" placeholder="begins with" width={240} first />
      </Filters>
      <DataTable
        label="Jobs of the workflow"
        grows
        columns={COLUMNS}
        pages={pages}
        rowKey={(node) => node.id}
        rowName={(node) => node.name}
        onOpen={(node) => (node.is_workflow ? go(`/workflows/${node.id}`) : url.set({ job: node.id }, true))}
        openKey={url.one("job")}
        empty={<EmptyState title="No job matches">Choose another state, or remove the name.</EmptyState>}
      />
    </>
  );
}
