/** One job: actions, state and its reason, attempts, and payload. */
import { Stack } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { get, type Schemas } from "../../api/client";
import { updating } from "../../app/prefs";
import { Answer } from "../../parts/Answer";
import { Duration } from "../../parts/Duration";
import { Explain } from "../../parts/Explain";
import { Facts } from "../../parts/Facts";
import { Instant } from "../../parts/Instant";
import { Json } from "../../parts/Json";
import { Side } from "../../parts/Side";
import { StateBadge } from "../../parts/StateBadge";
import { Section } from "../../parts/View";
import { JobActions } from "./JobActions";
import { Timeline } from "./Timeline";

type Job = Schemas["JobDetail"];

export function JobDrawer({ id, onClose }: { id: string; onClose: () => void }) {
  return (
    <Side open={id !== ""} title={`Job ${id}`} onClose={onClose}>
      {id !== "" && <JobById id={id} />}
    </Side>
  );
}

function JobById({ id }: { id: string }) {
  const held = updating.use() === "held";
  const found = useQuery({
    queryKey: ["jobs", "one", id],
    queryFn: ({ signal }) => get("/v1/jobs/{job_id}", { path: { job_id: id }, signal }),
    refetchInterval: held ? false : 2_000,
  });
  return <Answer of={found}>{(job) => <Shown job={job} />}</Answer>;
}

function Shown({ job }: { job: Job }) {
  return (
    <Stack gap="lg">
      <JobActions job={job} />
      <Facts of={facts(job)} />
      <Section title="Why it is in this state">
        <Explain
          queryKey={["jobs", "explain", job.id, job.updated_at]}
          load={(signal) => get("/v1/jobs/{job_id}/explain", { path: { job_id: job.id }, signal })}
        />
      </Section>
      <Section title="Timeline">
        <Timeline job={job} />
      </Section>
      <Section title="Payload">
        <Json label="payload" value={job.payload} hidden={job.payload_hidden} />
      </Section>
      {job.metadata != null && (
        <Section title="Metadata">
          <Json label="metadata" value={job.metadata} />
        </Section>
      )}
      {job.traceparent != null && (
        <Section title="Trace">
          <Json label="traceparent" value={job.traceparent} verbatim />
        </Section>
      )}
      {job.progress != null && (
        <Section title="Progress">
          <Json label="progress" value={job.progress} />
        </Section>
      )}
      {(job.result != null || job.payload_hidden) && (
        <Section title="Result">
          <Json label="result" value={job.result} hidden={job.payload_hidden} />
        </Section>
      )}
    </Stack>
  );
}

function facts(job: Job) {
  return [
    ["State", <StateBadge key="state" state={job.status} />],
    ["Task type", <Link key="type" href={`/task-types?type=${encodeURIComponent(job.task_type)}`}>{job.task_type}</Link>],
    ["Execute at", <Instant key="execute" at={job.execute_at} />],
    ["Due", <Instant key="due" at={job.due_at} ago={job.status === "pending"} />],
    ["Attempts", `${job.attempts} of ${job.max_attempts}`],
    ["Lateness of the first start", <Duration key="late" seconds={job.lateness_ms === null ? null : job.lateness_ms / 1000} />],
    ["Priority", String(job.priority)],
    ["Tags", job.tags.length === 0 ? null : job.tags.join(", ")],
    ["Group", job.group === null ? null : <Link key="group" href={`/jobs?type=${encodeURIComponent(job.task_type)}&group=${encodeURIComponent(job.group)}`}>{job.group}</Link>],
    ["Timeout", job.timeout ?? "of its task type"],
    ["Expires", <Instant key="expires" at={job.expires_at} />],
    ["Idempotency key", job.idempotency_key],
    ["Worker", job.worker === null ? null : <Link key="worker" href={`/workers?worker=${job.worker}`}>{job.worker}</Link>],
    ["Fence", job.fence],
    ["Version", String(job.version)],
    ["Created", <Instant key="created" at={job.created_at} />],
    ["Ended", <Instant key="ended" at={job.completed_at} />],
  ] as const; // prettier-ignore
}
