/** The main figures of the last fifteen minutes: from the server when the dashboard opens, then from the stream. */
import type { Schemas } from "../api/client";

export type Series = Schemas["OverviewSeries"];
type Overview = Schemas["OverviewView"];

const STEP_MS = 5_000;
const KEPT_MS = 15 * 60_000;

const EMPTY: Series = {
  at: [], due: [], oldest_due_s: [], started_per_s: [], completed_per_s: [], failed_per_s: [], p50_s: [], p99_s: [], answered_per_s: [],
  outbox_waiting: [],
}; // prettier-ignore

/** Return `series` with the snapshot as its last point; the last point moves until it is five seconds old. */
export function extended(series: Series | null, overview: Overview): Series {
  const before = series ?? EMPTY;
  const at = Date.parse(overview.at);
  const previous = before.at.at(-2);
  const moves = previous !== undefined && at - Date.parse(previous) < STEP_MS;
  const end = moves ? before.at.length - 1 : before.at.length;
  const kept = before.at.findIndex((one) => at - Date.parse(one) < KEPT_MS);
  const start = kept < 0 ? end : kept;
  const add = <T>(values: readonly T[], last: T): T[] => [...values.slice(start, end), last];
  const { jobs } = overview;
  return {
    at: add(before.at, overview.at),
    due: add(before.due, jobs.due),
    oldest_due_s: add(before.oldest_due_s, jobs.oldest_due_s),
    started_per_s: add(before.started_per_s, jobs.started_per_s),
    completed_per_s: add(before.completed_per_s, jobs.finished_per_s?.completed ?? null),
    failed_per_s: add(before.failed_per_s, jobs.finished_per_s?.failed ?? null),
    p50_s: add(before.p50_s, jobs.lateness?.p50_s ?? null),
    p99_s: add(before.p99_s, jobs.lateness?.p99_s ?? null),
    answered_per_s: add(before.answered_per_s, overview.polls.answered_per_s),
    outbox_waiting: add(before.outbox_waiting, overview.outbox.waiting),
  };
}
