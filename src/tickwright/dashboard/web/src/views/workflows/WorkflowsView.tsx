/** Workflows, newest first: how far each is, and which failed. */
import { Button } from "@mantine/core";
import { Link, useLocation } from "wouter";
import { get, type Schemas } from "../../api/client";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { count, percent } from "../../parts/Figure";
import { ChoiceFilter, Filters, TextFilter } from "../../parts/Filters";
import { Instant } from "../../parts/Instant";
import { Meter } from "../../parts/Meter";
import { StateBadge } from "../../parts/StateBadge";
import { TimeFilter } from "../../parts/TimeFilter";
import { usePages } from "../../parts/usePages";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";
import classes from "./workflows.module.css";

type Row = Schemas["WorkflowView"];
const NAMES = ["text", "state", "from", "to"] as const;
const STATES = ["running", "completed", "failed", "cancelled"] as const;

const COLUMNS: Column<Row>[] = [
  { id: "id", header: "Id", width: 90, cell: (one) => one.id },
  { id: "name", header: "Name", cell: (one) => <Link href={`/workflows/${one.id}`} title={one.key === null ? one.name : `${one.name}, key ${one.key}`}>{one.name}</Link> },
  { id: "state", header: "State", width: 110, cell: (one) => <StateBadge state={one.state} title={one.reason ?? undefined} /> },
  { id: "done", header: "Progress", width: 210, hide: "sm", cell: (one) => <Done of={one} /> },
  { id: "failed", header: "Failed", width: 80, align: "right", cell: (one) => <Bad value={one.failed} /> },
  { id: "cancelled", header: "Cancelled", width: 90, align: "right", hide: "md", cell: (one) => (one.cancelled === 0 ? "" : count(one.cancelled)) },
  { id: "added", header: "Added", width: 110, hide: "sm", cell: (one) => <Instant at={one.created_at} ago /> },
  { id: "ended", header: "Ended", width: 110, hide: "md", cell: (one) => <Instant at={one.ended_at} ago /> },
];

function Done({ of: one }: { of: Row }) {
  const ended = one.nodes - one.open;
  const ratio = one.nodes === 0 ? 1 : ended / one.nodes;
  const tone = one.failed > 0 ? "bad" : one.open > 0 ? "busy" : one.cancelled > 0 ? "warn" : "good";
  return (
    <div className={classes.done} title={`${count(ended)} of ${count(one.nodes)}, ${percent(ratio)}`}>
      <Meter label={`Ended of ${one.name}`} ratio={ratio} tone={tone} />
      <span>{`${count(ended)} of ${count(one.nodes)}`}</span>
    </div>
  );
}

const Bad = ({ value }: { value: number }) => (value === 0 ? null : <strong className={classes.bad}>{count(value)}</strong>);

export default function WorkflowsView() {
  const url = useUrl();
  const [, go] = useLocation();
  const state = STATES.find((one) => one === url.one("state"));
  const filter = {
    ...(state === undefined ? {} : { state: [state] }),
    text: url.one("text") || undefined,
    created_from: url.one("from") || undefined,
    created_to: url.one("to") || undefined,
  };
  const filtered = NAMES.some((name) => url.one(name) !== "");
  const pages = usePages({
    queryKey: ["workflows", "list", filter],
    load: (cursor, signal) => get("/v1/workflows", { query: { ...filter, cursor, limit: 100 }, signal }),
    onScroll: !filtered,
  });
  const searched = pages.pages.reduce((sum, page) => sum + page.searched, 0);
  return (
    <View title="Workflows">
      <Filters names={NAMES}>
        <TextFilter name="text" label="Text" placeholder="in name or key" width={240} first />
        <ChoiceFilter name="state" label="State" options={STATES} width={150} />
        <TimeFilter name="from" label="Added from" />
        <TimeFilter name="to" label="Added before" />
      </Filters>
      <DataTable
        label="Workflows, newest first"
        columns={COLUMNS}
        pages={pages}
        rowKey={(one) => one.id}
        rowName={(one) => `workflow ${one.id}`}
        onOpen={(one) => go(`/workflows/${one.id}`)}
        empty={
          <EmptyState title={filtered ? (pages.hasMore ? "Nothing found so far" : "No workflow matches") : "There is no workflow"}>
            {filtered ? "Remove a filter, or search further." : "A program adds one with app.workflow(…); a script with POST /v1/workflows or tickwright workflows add."}
          </EmptyState>
        }
      />
      {pages.hasMore && !pages.onScroll && (
        <div className={classes.further} role="status">
          {count(searched)} workflows were searched; there are more.
          <Button variant="default" size="compact-xs" loading={pages.busy} onClick={pages.more}>
            Search further
          </Button>
        </div>
      )}
    </View>
  );
}
