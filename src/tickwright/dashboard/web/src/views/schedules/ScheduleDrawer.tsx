/** One schedule: why it makes jobs or not, its next occurrences, what it skipped, its settings, and the actions. */
import { Button, Group, Stack } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { del, get, post, type Schemas } from "../../api/client";
import { updating } from "../../app/prefs";
import { useMay } from "../../app/session";
import { useConfirm, type Question } from "../../parts/Confirm";
import { DataTable, type Column } from "../../parts/DataTable";
import { ErrorBox } from "../../parts/ErrorBox";
import { Explain } from "../../parts/Explain";
import { Facts } from "../../parts/Facts";
import { Instant } from "../../parts/Instant";
import { Json } from "../../parts/Json";
import { Side } from "../../parts/Side";
import { StateBadge } from "../../parts/StateBadge";
import { useAction } from "../../parts/useAction";
import { Section } from "../../parts/View";
import { Waiting } from "../../parts/Waiting";
import type { Schedule } from "./fields";
import { Occurrences } from "./Occurrences";
import { ScheduleForm } from "./ScheduleForm";

export function ScheduleDrawer({ name, onClose }: { name: string; onClose: () => void }) {
  return (
    <Side open={name !== ""} title={name} onClose={onClose} wide>
      {name !== "" && <Shown key={name} name={name} onClose={onClose} />}
    </Side>
  );
}

function Shown({ name, onClose }: { name: string; onClose: () => void }) {
  const held = updating.use() === "held";
  const found = useQuery({
    queryKey: ["schedules", "one", name],
    queryFn: ({ signal }) => get("/v1/schedules/{name}", { path: { name }, signal }),
    refetchInterval: held ? false : 5_000,
  });
  const one = found.data;
  if (one === undefined) return found.error ? <ErrorBox error={found.error} onRetry={() => void found.refetch()} /> : <Waiting lines={12} />;
  return (
    <Stack gap="lg">
      {found.error !== null && <ErrorBox error={found.error} onRetry={() => void found.refetch()} kept />}
      <Actions schedule={one} onClose={onClose} />
      <Facts of={factsOf(one)} />
      <Section title="Why it makes jobs, or not">
        <Explain
          queryKey={["schedules", "explain", name, one.state, one.next_at, one.last_job_id, one.version]}
          load={(signal) => get("/v1/schedules/{name}/explain", { path: { name }, signal })}
        />
      </Section>
      <Section title="Next occurrences">
        <Occurrences label={`Next occurrences of ${name}`} of={one.next_occurrences} />
      </Section>
      {one.skips.length > 0 && (
        <Section title="Occurrences without a job">
          <DataTable label={`Skips of ${name}`} grows columns={SKIPS} pages={{ rows: one.skips, error: null }} rowKey={(skip) => skip.slot_at} empty={null} />
        </Section>
      )}
      <Section title="Payload">
        <Json label="payload" value={one.payload} hidden={one.payload_hidden} />
      </Section>
    </Stack>
  );
}

const SKIPS: Column<Schemas["SkipView"]>[] = [
  { id: "from", header: "From", cell: (skip) => <Instant at={skip.slot_at} /> },
  { id: "slots", header: "Number", width: 80, align: "right", cell: (skip) => String(skip.slots) },
  { id: "reason", header: "Reason", width: 110, cell: (skip) => skip.reason },
];

function factsOf(one: Schedule) {
  return [
    ["State", <StateBadge key="state" state={one.state} title={one.problem ?? undefined} />],
    ["Times", one.text],
    ["Cron", one.cron],
    ["Time zone", one.time_zone],
    ["Spread", one.spread],
    ["Task type", <Link key="type" href={`/task-types?type=${encodeURIComponent(one.task_type)}`}>{one.task_type}</Link>],
    ["Last job", one.last_job_id === null ? null : <Link key="job" href={`/jobs?job=${one.last_job_id}`}>{`${one.last_job_id} ${one.last_job_status ?? ""}`}</Link>],
    ["Last occurrence", <Instant key="last" at={one.last_slot_at} />],
    ["If a job has not ended", one.overlap],
    ["Found too late", `${one.misfire}, after ${one.misfire_grace}`],
    ["Expires after", one.expires_after],
    ["Version", String(one.version)],
    ["Set by", one.set_by],
    ["Changed", <Instant key="changed" at={one.updated_at} />],
  ] as const;
}

function Actions({ schedule, onClose }: { schedule: Schedule; onClose: () => void }) {
  const isOperator = useMay("operator");
  const confirm = useConfirm();
  const [editing, setEditing] = useState(false);
  const { name } = schedule;
  const path = { name };
  const isPaused = schedule.paused_at !== null;
  const toggle = useAction({
    run: () => (isPaused ? post("/v1/schedules/{name}/enable", { path }) : post("/v1/schedules/{name}/pause", { path })),
    message: () => `${name} ${isPaused ? "is enabled" : "is paused"}`,
    invalidates: ["schedules"],
  });
  const run = useAction({
    run: () => post("/v1/schedules/{name}/run-now", { path }),
    message: (made) => `job ${made.id} is scheduled now`,
    invalidates: ["schedules", "jobs"],
  });
  const remove = useAction({
    run: () => del("/v1/schedules/{name}", { path }),
    message: () => {
      onClose();
      return `${name} is deleted`;
    },
    invalidates: ["schedules"],
  });
  async function ask(question: Question, action: { mutate: (argument: undefined) => void }): Promise<void> {
    if (await confirm(question)) action.mutate(undefined);
  }
  if (!isOperator) return null;
  const pausing = isPaused
    ? { title: "Enable 1 schedule?", text: `${name} makes jobs from now on; what it missed is not caught up.`, does: "Enable" }
    : { title: "Pause 1 schedule?", text: `${name} makes no jobs until it is enabled; jobs that exist stay.`, does: "Pause", danger: true };
  const running = { title: "Run 1 job now?", text: `One job of ${schedule.task_type} is made now, beside the occurrences of ${name}.`, does: "Run 1 job" };
  const deleting = {
    title: "Delete 1 schedule?",
    text: `${name} makes no more jobs; jobs that exist stay.${schedule.set_by === "app" ? " A program declares it: its next start creates it again, so pause it instead." : ""}`,
    does: "Delete 1 schedule",
    danger: true,
  };
  return (
    <Group gap="xs">
      <Button onClick={() => setEditing(true)}>Edit</Button>
      <Button variant="default" loading={run.isPending} onClick={() => void ask(running, run)}>
        Run now
      </Button>
      <Button variant="default" loading={toggle.isPending} onClick={() => void ask(pausing, toggle)}>
        {isPaused ? "Enable" : "Pause"}
      </Button>
      <Button variant="default" loading={remove.isPending} onClick={() => void ask(deleting, remove)}>
        Delete
      </Button>
      {editing && <ScheduleForm schedule={schedule} onClose={() => setEditing(false)} />}
    </Group>
  );
}
