/** The timeline of a job: creation, due time, logged attempts, and end. */
import type { Schemas } from "../../api/client";
import { now, useSecond } from "../../app/clock";
import { spoken } from "../../parts/Duration";
import { Instant } from "../../parts/Instant";
import { toneOf, type Tone } from "../../parts/StateBadge";
import classes from "./jobs.module.css";

type Job = Schemas["JobDetail"];
type Attempt = Schemas["AttemptView"];

export function Timeline({ job }: { job: Job }) {
  const attempts = job.attempt_log;
  const unknown = job.attempts - attempts.length;
  const waits = job.status === "pending";
  return (
    <ol className={classes.timeline} aria-label="Timeline">
      <Step tone="idle" name="Created" at={job.created_at} />
      <Step tone="idle" name="Execute at" at={job.execute_at} />
      {unknown > 0 && <Step tone="idle" name={`${unknown} earlier attempts, not logged`} />}
      {attempts.map((attempt) => (
        <AttemptStep key={`${attempt.attempt}-${attempt.fence}`} attempt={attempt} />
      ))}
      {waits && job.attempts > 0 && <Step tone="warn" name="Next attempt" at={job.due_at} />}
      {job.cancel_requested_at !== null && <Step tone="warn" name="Cancel requested" at={job.cancel_requested_at} />}
      {job.completed_at !== null && <Step tone={toneOf(job.status)} name={job.status} at={job.completed_at} error={lastError(job)} />}
    </ol>
  );
}

/** The error of a job whose attempts have none, such as one that expired. */
function lastError(job: Job): string | null {
  const isLogged = job.attempt_log.some((attempt) => attempt.error !== null);
  return isLogged ? null : job.error_message;
}

function AttemptStep({ attempt }: { attempt: Attempt }) {
  useSecond();
  const end = attempt.ended_at === null ? now() : Date.parse(attempt.ended_at);
  const took = Math.max(0, (end - Date.parse(attempt.started_at)) / 1000);
  const late = spoken(Math.max(0, attempt.lateness_ms / 1000));
  const worker = attempt.worker === null ? "" : `, worker ${attempt.worker}`;
  return (
    <Step
      tone={toneOf(attempt.outcome)}
      name={`Attempt ${attempt.attempt}: ${attempt.outcome.replaceAll("_", " ")}`}
      at={attempt.started_at}
      detail={`started ${late} late, ${attempt.ended_at === null ? "runs for" : "took"} ${spoken(took)}${worker}`}
      error={attempt.error}
    />
  );
}

interface StepProps {
  tone: Tone;
  name: string;
  at?: string;
  detail?: string;
  error?: string | null;
}

function Step({ tone, name, at, detail, error = null }: StepProps) {
  return (
    <li data-tone={tone}>
      <div className={classes.step}>
        <strong>{name}</strong>
        {at !== undefined && <Instant at={at} />}
      </div>
      {detail !== undefined && <div className={classes.detail}>{detail}</div>}
      {error !== null && (
        <pre className={classes.error} tabIndex={0} aria-label={`Error of ${name}`}>
          {error}
        </pre>
      )}
    </li>
  );
}
