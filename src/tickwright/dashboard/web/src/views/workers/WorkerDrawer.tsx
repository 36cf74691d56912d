/** One worker session: its facts, figures, what it holds, and its drain. */
import { Button, Group, Stack, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { get, post, type Schemas } from "../../api/client";
import { useMay } from "../../app/session";
import { Answer } from "../../parts/Answer";
import { useConfirm } from "../../parts/Confirm";
import { DataTable, type Column } from "../../parts/DataTable";
import { Facts } from "../../parts/Facts";
import { count } from "../../parts/Figure";
import { Instant } from "../../parts/Instant";
import { Json } from "../../parts/Json";
import { Side } from "../../parts/Side";
import { StateBadge } from "../../parts/StateBadge";
import { useAction } from "../../parts/useAction";
import { Section } from "../../parts/View";
import { Holds } from "./Holds";
import { figuresOf, jobsOf, scopeOf, stateOf, typesOf, type TypeFigures } from "./facts";

type Worker = Schemas["WorkerDetail"];

export function WorkerDrawer({ id, onClose }: { id: string; onClose: () => void }) {
  return (
    <Side open={id !== ""} title={`Worker session ${id}`} onClose={onClose} wide>
      {id !== "" && <Session key={id} id={id} />}
    </Side>
  );
}

function Session({ id }: { id: string }) {
  const found = useQuery({
    queryKey: ["workers", "one", id],
    queryFn: ({ signal }) => get("/v1/workers/{worker}", { path: { worker: id }, signal }),
    refetchInterval: 3_000,
  });
  return (
    <Answer of={found} lines={12}>
      {(worker) => <One worker={worker} />}
    </Answer>
  );
}

function One({ worker }: { worker: Worker }) {
  const may = useMay("admin");
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
          ["Started", <Instant key="started" at={worker.started_at} />],
          ["Last seen", <Instant key="seen" at={worker.seen_at} ago />],
          ["Lease ends", <Instant key="lease" at={worker.lease_until} ago />],
          ["Drain requested", <Instant key="drain" at={worker.drain_requested_at} />],
          ["Lost", <Instant key="lost" at={worker.lost_at} />],
          ["Running", jobs === null ? null : count(jobs.running)],
          ["Queued in memory", jobs === null ? null : count(jobs.queued)],
          ["Queues and types", jobs === null ? null : (scopeOf(worker) ?? "all")],
        ]}
      />
      <Text size="sm">
        <Text span c="dimmed">
          Roles:
        </Text>{" "}
        {worker.roles.join(", ")}
      </Text>
      {may && worker.alive && worker.drain_requested_at === null && (
        <Group>
          <DrainButton worker={worker} />
        </Group>
      )}
      <Section title="What it holds">
        <Holds worker={worker} />
      </Section>
      {types.length > 0 && (
        <Section title="Jobs since its start">
          <DataTable label="Jobs by task type since its start" columns={TYPES} pages={{ rows: types, error: null }} rowKey={(one) => one.name} empty={null} grows />
        </Section>
      )}
      {others.length > 0 && (
        <Section title="Polls and messages since its start">
          <Facts of={others} />
        </Section>
      )}
      <Section title="Reported facts">
        <Json label="facts" value={worker.facts} />
      </Section>
    </Stack>
  );
}

const TYPES: Column<TypeFigures>[] = [
  { id: "type", header: "Task type", cell: (one) => <Link href={`/jobs?type=${encodeURIComponent(one.name)}`}>{one.name}</Link> },
  { id: "running", header: "Running", width: 90, align: "right", cell: (one) => count(one.running) },
  { id: "starts", header: "Starts", width: 90, align: "right", cell: (one) => count(one.starts) },
  { id: "completed", header: "Completed", width: 100, align: "right", hide: "sm", cell: (one) => count(one.completed) },
  { id: "failed", header: "Failed", width: 80, align: "right", cell: (one) => count(one.failed) },
];

function DrainButton({ worker }: { worker: Worker }) {
  const confirm = useConfirm();
  const running = jobsOf(worker)?.running ?? 0;
  const action = useAction({
    run: () => post("/v1/workers/{worker}/drain", { path: { worker: worker.id } }),
    message: () => `${worker.name} finishes its running work and stops.`,
    invalidates: ["workers"],
  });
  async function ask(): Promise<void> {
    const yes = await confirm({
      title: `Drain ${worker.name}?`,
      text: `It claims nothing more, finishes ${running === 1 ? "the job" : `the ${count(running)} jobs`} that it runs, releases the rest without costing an attempt, and stops. Its leases go to another process.`,
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
