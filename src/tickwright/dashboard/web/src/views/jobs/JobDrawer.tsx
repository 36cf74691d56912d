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
import { Neighbours } from "../workflows/Neighbours";
import { JobActions } from "./JobActions";
import classes from "./jobs.module.css";
import { Timeline } from "./Timeline";

type Job = Schemas["JobDetail"];
type Unique = NonNullable<Job["unique"]>;

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
      {job.workflow_id !== null && <Neighbours workflowId={job.workflow_id} jobId={job.id} />}
      <Section title="Timeline">
        <Timeline job={job} />
      </Section>
      {job.steps.length > 0 && (
        <Section title="Steps">
          <Steps job={job} />
        </Section>
      )}
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

/** The rule of a unique job, how often equal requests met it, and which job has its arguments now. */
function Rule({ id, of }: { id: Job["id"]; of: Unique }) {
  const by = of.by == null ? "all arguments" : of.by.length === 0 ? "its type" : of.by.join(", ");
  const changes = of.on_conflict === "keep" ? "kept" : `replaced (${of.on_conflict.join(", ")})`;
  const period = of.period == null ? "" : ` for ${of.period}`;
  const count = `kept ${of.kept} times, replaced ${of.replaced} times`;
  const passed = of.holder_id !== null && of.holder_id !== id;
  return (
    <>
      {`by ${by} while ${of.over.join(", ")}${period}; an equal one is ${changes}; ${count}`}
      {passed && (
        <>
          {"; its arguments are those of "}
          <Link href={`/jobs?job=${of.holder_id}`}>{`job ${of.holder_id}`}</Link>
        </>
      )}
    </>
  );
}

/** The steps that the handler has done, each with its result. */
function Steps({ job }: { job: Job }) {
  const results = (job.step_results ?? {}) as Record<string, unknown>;
  return (
    <ol className={classes.timeline} aria-label="Steps">
      {job.steps.map((step) => (
        <li key={step.name} data-tone="good">
          <div className={classes.step}>
            <strong>{step.name}</strong>
            <Instant at={step.at} />
          </div>
          <div className={classes.detail}>attempt {step.attempt}</div>
          <Json label={`result of ${step.name}`} value={results[step.name]} hidden={job.payload_hidden} />
        </li>
      ))}
    </ol>
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
    ["Unique", job.unique == null ? null : <Rule key="unique" id={job.id} of={job.unique} />],
    ["Worker", job.worker === null ? null : <Link key="worker" href={`/workers?worker=${job.worker}`}>{job.worker}</Link>],
    ["Fence", job.fence],
    ["Version", String(job.version)],
    ["Created", <Instant key="created" at={job.created_at} />],
    ["Ended", <Instant key="ended" at={job.completed_at} />],
  ] as const; // prettier-ignore
}
