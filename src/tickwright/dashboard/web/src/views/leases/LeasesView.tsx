/** Leases of the control loops: who owns each, its fence, its age, and what it guards. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { get, type Schemas } from "../../api/client";
import { now, useSecond } from "../../app/clock";
import { updating } from "../../app/prefs";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { ChoiceFilter, Filters, TextFilter } from "../../parts/Filters";
import { Instant } from "../../parts/Instant";
import { StateBadge } from "../../parts/StateBadge";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";

type Lease = Schemas["LeaseView"];

function stateOf(lease: Lease, nowMs: number): "held" | "overdue" | "free" {
  if (!lease.running) return "free";
  return lease.lease_until !== null && Date.parse(lease.lease_until) < nowMs ? "overdue" : "held";
}

function State({ lease }: { lease: Lease }) {
  useSecond();
  return <StateBadge state={stateOf(lease, now())} />;
}

/** An owner is the name of its process and a word that no other start has. */
function Owner({ owner }: { owner: string | null }) {
  if (owner === null) return "nobody";
  const name = owner.split(":").slice(0, -1).join(":") || owner;
  return (
    <Link href={`/workers?text=${encodeURIComponent(name)}`} title={owner}>
      {owner}
    </Link>
  );
}

const COLUMNS: Column<Lease>[] = [
  { id: "name", header: "Lease", width: 190, cell: (one) => <span title={one.job_name}>{one.job_name}</span> },
  { id: "state", header: "State", width: 110, cell: (one) => <State lease={one} /> },
  { id: "owner", header: "Owner", cell: (one) => <Owner owner={one.running ? one.owner : null} /> },
  { id: "fence", header: "Fence", width: 80, align: "right", cell: (one) => one.version },
  { id: "since", header: "Held since", width: 140, hide: "sm", cell: (one) => (one.running ? <Instant at={one.last_started_at} ago /> : "–") },
  { id: "until", header: "Deadline", width: 130, hide: "sm", cell: (one) => (one.running ? <Instant at={one.lease_until} ago /> : "–") },
  { id: "ended", header: "Ended last", width: 140, hide: "md", cell: (one) => <Instant at={one.last_completed_at} ago /> },
  { id: "slice", header: "Slice to", width: 170, hide: "md", cell: (one) => <Instant at={one.slice_end} /> },
];

export default function LeasesView() {
  const url = useUrl();
  const held = updating.use() === "held";
  const found = useQuery({ queryKey: ["leases", "all"], queryFn: ({ signal }) => get("/v1/leases", { signal }), refetchInterval: held ? false : 5_000 });
  const all = found.data?.items;
  const [text, state] = [url.one("text").toLowerCase(), url.one("state")];
  const rows = all?.filter((one) => `${one.job_name} ${one.owner ?? ""}`.toLowerCase().includes(text) && (state === "" || stateOf(one, now()) === state));
  return (
    <View title="Leases">
      <Filters names={["text", "state"]}>
        <TextFilter name="text" label="Lease or owner" placeholder="part of a name" first />
        <ChoiceFilter name="state" label="State" options={["held", "overdue", "free"]} width={140} />
      </Filters>
      <DataTable
        label="Leases of the control loops"
        columns={COLUMNS}
        pages={{ rows: found.error ? undefined : rows, error: found.error, again: () => void found.refetch() }}
        rowKey={(one) => one.job_name}
        empty={
          all?.length === 0 ? (
            <EmptyState title="No loop has had a lease yet">Control loops run in processes with the role scheduler: `tickwright run scheduler`.</EmptyState>
          ) : (
            <EmptyState title="No lease matches">Leave out a filter.</EmptyState>
          )
        }
      />
    </View>
  );
}
