/** Bulk actions: a thousand jobs a call, until no job is left or the dashboard is closed. */
import { post } from "../../api/client";
import type { JobFilter } from "./filter";

export type BulkName = "cancel" | "retry" | "run-now" | "reschedule";
/** The new time: an instant or a delay; for many jobs also a shift of each. */
export type MoveOne = { execute_at: string } | { delay: string };
export type MoveTo = MoveOne | { shift: string };
export type Target = { ids: readonly string[] } | { filter: JobFilter };

interface Part {
  changed: number;
  more: boolean;
  next: string | null;
}

export interface Done {
  changed: number;
  /** The count stopped at its limit; more may match. */
  more: boolean;
}

const IDS_MAX = 1000;
const CALLS_MAX = 1000;

/** Return how many jobs an action would change, with a dry run. */
export function tried(name: BulkName, target: Target, to?: MoveTo): Promise<Done> {
  return summed(bodies(target).map((body) => () => call(name, { ...body, dry_run: true }, to)));
}

/** Perform the action, and return how many jobs were changed. */
export function acted(name: BulkName, target: Target, to?: MoveTo): Promise<Done> {
  return summed(bodies(target).map((body) => () => toTheEnd(name, body, to)));
}

type Body = JobFilter & { ids?: string[]; cursor?: string; dry_run?: boolean };

function bodies(target: Target): Body[] {
  if ("filter" in target) return [target.filter];
  const starts = Array.from({ length: Math.ceil(target.ids.length / IDS_MAX) }, (_, part) => part * IDS_MAX);
  return starts.map((start) => ({ ids: target.ids.slice(start, start + IDS_MAX) }));
}

async function summed(calls: readonly (() => Promise<Done>)[]): Promise<Done> {
  const whole: Done = { changed: 0, more: false };
  for (const one of calls) {
    const part = await one();
    whole.changed += part.changed;
    whole.more ||= part.more;
  }
  return whole;
}

async function toTheEnd(name: BulkName, body: Body, to: MoveTo | undefined): Promise<Done> {
  const whole: Done = { changed: 0, more: true };
  let next: string | null = null;
  for (let calls = 0; whole.more && calls < CALLS_MAX; calls += 1) {
    const part: Part = await call(name, next === null ? body : { ...body, cursor: next }, to);
    whole.changed += part.changed;
    whole.more = part.more && part.next !== null;
    next = part.next;
  }
  return whole;
}

async function call(name: BulkName, body: Body, to: MoveTo | undefined): Promise<Part> {
  if (name === "retry") {
    const { requeued, more, next } = await post("/v1/jobs:retry", { body });
    return { changed: requeued, more, next };
  }
  if (name === "reschedule") return post("/v1/jobs:reschedule", { body: { ...body, ...to } });
  if (name === "run-now") return post("/v1/jobs:run-now", { body });
  const { changed, requested, more, next } = await post("/v1/jobs:cancel", { body });
  return { changed: changed + requested, more, next };
}
