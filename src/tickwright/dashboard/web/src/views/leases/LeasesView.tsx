/** Leases of the control loops: owner, fence, age, and what each guards. */
import { Button } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { get, post, type Schemas } from "../../api/client";
import { now, useSecond } from "../../app/clock";
import { updating } from "../../app/prefs";
import { useMay } from "../../app/session";
import { useConfirm } from "../../parts/Confirm";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { ChoiceFilter, Filters, TextFilter } from "../../parts/Filters";
import { Instant } from "../../parts/Instant";
import { StateBadge } from "../../parts/StateBadge";
import { useAction } from "../../parts/useAction";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";

type Lease = Schemas["LeaseView"];

function stateOf(lease: Lease, nowMs: number): "held" | "overdue" | "free" {
  if (!lease.running || lease.owner === null) return "free";
  return lease.lease_until !== null && Date.parse(lease.lease_until) < nowMs ? "overdue" : "held";
}

function State({ lease }: { lease: Lease }) {
  useSecond();
  return <StateBadge state={stateOf(lease, now())} />;
}

function Owner({ lease }: { lease: Lease }) {
  if (!lease.running || lease.owner === null) return "none";
  if (lease.session === null) return <span title="No live session has this name">{lease.owner}</span>;
  return <Link href={`/workers?worker=${lease.session}`}>{lease.owner}</Link>;
}

function columns(may: boolean): Column<Lease>[] {
  return [
    { id: "name", header: "Lease", width: 160, cell: (one) => <span title={one.job_name}>{one.job_name}</span> },
    { id: "state", header: "State", width: 96, cell: (one) => <State lease={one} /> },
    { id: "owner", header: "Owner", width: 170, cell: (one) => <Owner lease={one} /> },
    { id: "fence", header: "Fence", width: 64, align: "right", hide: "sm", cell: (one) => one.version },
    { id: "since", header: "Held since", width: 130, hide: "sm", cell: (one) => (one.held ? <Instant at={one.last_started_at} ago /> : "–") },
    { id: "until", header: "Deadline", width: 110, hide: "sm", cell: (one) => (one.running ? <Instant at={one.lease_until} ago /> : "–") },
    { id: "guards", header: "Guards", hide: "md", cell: (one) => <span title={one.guards}>{one.guards}</span> },
    { id: "does", header: "", width: 98, hide: "sm", cell: (one) => may && one.held && <ReleaseButton lease={one} /> },
  ];
}

function ReleaseButton({ lease }: { lease: Lease }) {
  const confirm = useConfirm();
  const action = useAction({
    run: () => post("/v1/leases/{job_name}/release", { path: { job_name: lease.job_name } }),
    message: (done) => `${done.job_name} is free; its fence is ${done.version} now.`,
    invalidates: ["leases", "workers"],
  });
  async function ask(): Promise<void> {
    const yes = await confirm({
      title: `Release ${lease.job_name}?`,
      text: `${lease.owner ?? "Its owner"} loses it at once: the fence rises, so that its further writes change nothing. The next process that tries gets it, possibly the same one.`,
      does: "Release 1 lease",
      danger: true,
    });
    if (yes) action.mutate(undefined);
  }
  return (
    <Button size="compact-xs" variant="default" onClick={() => void ask()} loading={action.isPending} aria-label={`Release ${lease.job_name}`}>
      Release
    </Button>
  );
}

export default function LeasesView() {
  const url = useUrl();
  const may = useMay("admin");
  const held = updating.use() === "held";
  const found = useQuery({ queryKey: ["leases", "all"], queryFn: ({ signal }) => get("/v1/leases", { signal }), refetchInterval: held ? false : 5_000 });
  const all = found.data?.items;
  const [text, state] = [url.one("text").toLowerCase(), url.one("state")];
  const rows = all?.filter((one) => `${one.job_name} ${one.owner ?? ""} ${one.guards}`.toLowerCase().includes(text) && (state === "" || stateOf(one, now()) === state));
  return (
    <View title="Leases">
      <Filters names={["text", "state"]}>
        <TextFilter name="text" label="Lease or owner" placeholder="part of a name" first />
        <ChoiceFilter name="state" label="State" options={["held", "overdue", "free"]} width={140} />
      </Filters>
      <DataTable
        label="Leases of the control loops"
        columns={columns(may)}
        pages={{ rows, error: found.error, again: () => void found.refetch() }}
        rowKey={(one) => one.job_name}
        empty={
          all?.length === 0 ? (
            <EmptyState title="There is no lease yet">Control loops run in processes with the role scheduler: <code>tickwright run scheduler</code>.</EmptyState>
          ) : (
            <EmptyState title="No lease matches">Remove a filter.</EmptyState>
          )
        }
      />
    </View>
  );
}
