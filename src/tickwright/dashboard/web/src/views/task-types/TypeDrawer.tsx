/** One task type: its figures, its settings, and the actions of an admin. */
import { Alert, Button, Group, Stack } from "@mantine/core";
import { useState } from "react";
import { Link } from "wouter";
import { post } from "../../api/client";
import { useMay } from "../../app/session";
import { useConfirm } from "../../parts/Confirm";
import { Duration } from "../../parts/Duration";
import { EmptyState } from "../../parts/EmptyState";
import { Facts } from "../../parts/Facts";
import { count, Figure } from "../../parts/Figure";
import { Instant } from "../../parts/Instant";
import { Side } from "../../parts/Side";
import { StateBadge } from "../../parts/StateBadge";
import { useAction } from "../../parts/useAction";
import { Section } from "../../parts/View";
import { Waiting } from "../../parts/Waiting";
import { stateOf, type Row, type TaskType } from "./rows";
import { TypeForm } from "./TypeForm";

interface Props {
  name: string;
  row: Row | undefined;
  known: boolean;
  onSecret: (secret: string) => void;
  onClose: () => void;
}

export function TypeDrawer({ name, row, known, onSecret, onClose }: Props) {
  return (
    <Side open={name !== ""} title={name} onClose={onClose}>
      {row === undefined && !known && <Waiting />}
      {row === undefined && known && <EmptyState title="There is no such task type">It may have been deleted.</EmptyState>}
      {row !== undefined && <Shown row={row} onSecret={onSecret} />}
    </Side>
  );
}

function Shown({ row, onSecret }: { row: Row; onSecret: (secret: string) => void }) {
  const isAdmin = useMay("admin");
  const { type, now, cap } = row;
  const jobs = (known: number | undefined) => (cap === Infinity ? "–" : count(known ?? 0, cap));
  return (
    <Stack gap="lg">
      {isAdmin && type !== null && <Actions type={type} onSecret={onSecret} />}
      {type === null && (
        <Alert color="red" variant="light" title="No program has registered this type">
          Its jobs wait: start a worker that has its handler, or create the task type here with a target.
        </Alert>
      )}
      {type !== null && type.gone_at !== null && (
        <Alert color="red" variant="light" title="Its endpoint answered 410">
          Its jobs have waited since <Instant at={type.gone_at} />. Enable it when the endpoint is available again, or set another target.
        </Alert>
      )}
      {type !== null && type.queue_paused_at !== null && (
        <Alert color="yellow" variant="light" title={`Its queue ${type.queue} is paused`}>
          The jobs of all its types have waited since <Instant at={type.queue_paused_at} />. Enable the queue in the list of task types.
        </Alert>
      )}
      <Section title="Now">
        <Facts
          of={[
            ["State", <StateBadge key="state" {...stateOf(row)} />],
            ["Due", <Link key="due" href={`/jobs?state=pending&type=${encodeURIComponent(row.name)}`}>{jobs(now?.due)}</Link>],
            ["Oldest due", <Duration key="oldest" seconds={now?.due ? now.oldest_due_s : null} />],
            ["Running", jobs(now?.processing)],
            ["Upcoming", jobs(now?.upcoming)],
            ["Started per s", <Figure key="started" value={now?.started_per_s} as="rate" />],
            ["Completed per s", <Figure key="completed" value={now?.finished_per_s?.completed} as="rate" />],
            ["Failure share", <Figure key="failed" value={now?.failure_share} as="percent" />],
            ["Failed jobs", <Link key="jobs" href={`/jobs?state=failed&type=${encodeURIComponent(row.name)}`}>show</Link>],
          ]}
        />
      </Section>
      {type !== null && <Settings type={type} />}
    </Stack>
  );
}

function Settings({ type }: { type: TaskType }) {
  return (
    <Section title="Settings">
      <Facts
        of={[
          ["Target", type.target],
          ["Timeout", type.timeout],
          ["Maximum attempts", String(type.max_attempts)],
          ["Back-off", `${type.retry_base} × ${type.retry_factor}, up to ${type.retry_cap}`],
          ["Final statuses", type.final_statuses.join(", ") || "none"],
          ["Concurrency", type.concurrency === null ? "no limit" : count(type.concurrency)],
          ["Groups", groupsOf(type)],
          ["Rate", type.rate_per_s === null ? "no limit" : `${type.rate_per_s}/s`],
          ["Queue", type.queue],
          ["Needs", type.needs.join(", ") || "nothing"],
          ["History", type.keep_history ? "kept" : "not kept"],
          ["Encrypted", type.encrypted ? (type.deliver === null ? "yes" : `yes, delivered as ${type.deliver}`) : "no"],
          ["Signing secrets", String(type.signing_secrets)],
          ["Version", String(type.version)],
          ["Changed", <Instant key="changed" at={type.updated_at} />],
        ]}
      />
    </Section>
  );
}

function Actions({ type, onSecret }: { type: TaskType; onSecret: (secret: string) => void }) {
  const confirm = useConfirm();
  const [editing, setEditing] = useState(false);
  const path = { name: type.name };
  const waits = type.paused_at !== null || type.gone_at !== null;
  const toggle = useAction({
    run: () => (waits ? post("/v1/task-types/{name}/enable", { path }) : post("/v1/task-types/{name}/pause", { path })),
    message: () => `${type.name} ${waits ? "is enabled" : "is paused"}`,
    invalidates: ["task-types", "jobs"],
  });
  const rotate = useAction({
    run: () => post("/v1/task-types/{name}/rotate-secret", { path, body: {} }),
    message: ({ secret }) => {
      onSecret(secret);
      return null;
    },
    invalidates: ["task-types"],
  });
  async function ask(): Promise<void> {
    const question = waits
      ? { title: "Enable 1 task type?", text: `Jobs of ${type.name} that are due start at once, within its limits.`, does: "Enable" }
      : { title: "Pause 1 task type?", text: `Jobs of ${type.name} wait until it is enabled; running jobs continue.`, does: "Pause", danger: true };
    if (await confirm(question)) toggle.mutate();
  }
  async function askRotate(): Promise<void> {
    const text = `A new secret signs the callbacks of ${type.name} from now on; the old ones sign too for 24 hours. The new one is shown only once.`;
    if (await confirm({ title: "Rotate 1 signing secret?", text, does: "Rotate" })) rotate.mutate();
  }
  return (
    <Group gap="xs">
      <Button onClick={() => setEditing(true)}>Edit</Button>
      <Button variant="default" loading={toggle.isPending} onClick={() => void ask()}>
        {waits ? "Enable" : "Pause"}
      </Button>
      {/^(https?|wss?):/.test(type.target) && (
        <Button variant="default" loading={rotate.isPending} onClick={() => void askRotate()}>
          Rotate secret
        </Button>
      )}
      {editing && <TypeForm type={type} onClose={() => setEditing(false)} onSecret={onSecret} />}
    </Group>
  );
}

/** Return the limits of each group of jobs, and what follows a failed job of an ordered one. */
function groupsOf(type: TaskType): string {
  const parts = [
    type.group_limit === null ? "" : `${count(type.group_limit)} at once`,
    type.group_rate_per_s === null ? "" : `${type.group_rate_per_s}/s`,
    type.group_order === null ? "" : `in order, ${type.group_order} behind a failed job`,
  ];
  return parts.filter((part) => part !== "").join(", ") || "no limit";
}
