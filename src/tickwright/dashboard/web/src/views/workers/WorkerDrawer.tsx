/** One worker session: what it is, what it does and holds, and its drain. */
import { Button, Group, Stack } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { get, post, type Schemas } from "../../api/client";
import { useMay } from "../../app/session";
import { useConfirm } from "../../parts/Confirm";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { ErrorBox } from "../../parts/ErrorBox";
import { Facts } from "../../parts/Facts";
import { count } from "../../parts/Figure";
import { Instant } from "../../parts/Instant";
import { Json } from "../../parts/Json";
import { Side } from "../../parts/Side";
import { StateBadge } from "../../parts/StateBadge";
import { useAction } from "../../parts/useAction";
import { Section } from "../../parts/View";
import { Waiting } from "../../parts/Waiting";
import { figuresOf, jobsOf, stateOf, typesOf, type TypeFigures } from "./facts";

type Worker = Schemas["WorkerView"];

interface Props {
  id: string;
  found: Worker | undefined;
  asked: boolean;
  onClose: () => void;
}

export function WorkerDrawer({ id, found, asked, onClose }: Props) {
  return (
    <Side open={id !== ""} title={`Worker session ${id}`} onClose={onClose} wide>
      {found !== undefined ? <One worker={found} /> : asked ? <EmptyState title={`There is no session ${id}`}>Sessions are kept for a day after they end.</EmptyState> : <Waiting />}
    </Side>
  );
}

function One({ worker }: { worker: Worker }) {
  const may = useMay("operator");
  const jobs = jobsOf(worker);
  const types = typesOf(worker);
  const others = [...figuresOf(worker, "polls").map(([name, value]) => [`polls ${name}`, count(value)] as const), ...figuresOf(worker, "relay").map(([name, value]) => [`messages ${name}`, count(value)] as const)];
  return (
    <Stack>
      <Facts
        of={[
          ["State", <StateBadge key="state" {...stateOf(worker)} />],
          ["Process", worker.name],
          ["Version", worker.version],
          ["Began", <Instant key="began" at={worker.started_at} />],
          ["Seen", <Instant key="seen" at={worker.seen_at} ago />],
          ["Its lease ends", <Instant key="lease" at={worker.lease_until} ago />],
          ["Drain asked for", <Instant key="drain" at={worker.drain_requested_at} />],
          ["Lost", <Instant key="lost" at={worker.lost_at} />],
          ["Runs now", jobs === null ? null : count(jobs.running)],
          ["Waits in its memory", jobs === null ? null : count(jobs.queued)],
        ]}
      />
      <Facts of={[["Roles", worker.roles.join(", ")]]} />
      {may && worker.alive && worker.drain_requested_at === null && (
        <Group>
          <DrainButton worker={worker} />
        </Group>
      )}
      {worker.alive && <Leases name={worker.name} />}
      {types.length > 0 && (
        <Section title="Jobs since it began">
          <DataTable label="Jobs by task type since it began" columns={TYPES} pages={{ rows: types, error: null }} rowKey={(one) => one.name} empty={null} grows />
        </Section>
      )}
      {others.length > 0 && (
        <Section title="Polls and messages since it began">
          <Facts of={others} />
        </Section>
      )}
      <Section title="What it says of itself">
        <Json label="facts" value={worker.facts} />
      </Section>
    </Stack>
  );
}

const TYPES: Column<TypeFigures>[] = [
  { id: "type", header: "Task type", cell: (one) => <Link href={`/jobs?type=${encodeURIComponent(one.name)}`}>{one.name}</Link> },
  { id: "running", header: "Runs now", width: 90, align: "right", cell: (one) => count(one.running) },
  { id: "starts", header: "Starts", width: 90, align: "right", cell: (one) => count(one.starts) },
  { id: "completed", header: "Completed", width: 100, align: "right", hide: "sm", cell: (one) => count(one.completed) },
  { id: "failed", header: "Failed", width: 80, align: "right", cell: (one) => count(one.failed) },
];

const LEASES: Column<Schemas["LeaseView"]>[] = [
  { id: "name", header: "Lease", cell: (one) => one.job_name },
  { id: "fence", header: "Fence", width: 80, align: "right", cell: (one) => one.version },
  { id: "since", header: "Held since", width: 120, cell: (one) => <Instant at={one.last_started_at} ago /> },
];

/** An owner is the name of its process and a word that no other start has. */
function Leases({ name }: { name: string }) {
  const found = useQuery({ queryKey: ["leases", "all"], queryFn: ({ signal }) => get("/v1/leases", { signal }) });
  const rows = found.data?.items.filter((lease) => lease.running && (lease.owner === name || lease.owner?.startsWith(`${name}:`)));
  if (found.error) return <ErrorBox error={found.error} onRetry={() => void found.refetch()} />;
  if (rows?.length === 0) return null;
  return (
    <Section title="Leases that it holds">
      <DataTable label="Leases that it holds" columns={LEASES} pages={{ rows, error: null }} rowKey={(one) => one.job_name} empty={null} grows />
    </Section>
  );
}

function DrainButton({ worker }: { worker: Worker }) {
  const confirm = useConfirm();
  const running = jobsOf(worker)?.running ?? 0;
  const action = useAction({
    run: () => post("/v1/workers/{worker}/drain", { path: { worker: worker.id } }),
    told: () => `${worker.name} finishes what it runs, and stops.`,
    touches: ["workers"],
  });
  async function ask(): Promise<void> {
    const yes = await confirm({
      title: `Drain ${worker.name}?`,
      text: `It claims nothing more, finishes ${running === 1 ? "the job" : `the ${count(running)} jobs`} that it runs, gives back the rest without costing an attempt, and stops. Its leases go to another process.`,
      does: "Drain 1 worker",
      danger: true,
    });
    if (yes) action.mutate(undefined);
  }
  return (
    <Button variant="default" onClick={() => void ask()} loading={action.isPending}>
      Drain
    </Button>
  );
}
