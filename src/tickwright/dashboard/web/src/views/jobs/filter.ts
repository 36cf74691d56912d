/** The filters of the list of jobs: in the URL as the viewer reads them, in a request as the API wants them. */
import type { Url } from "../../parts/useUrl";

export const STATES = ["pending", "processing", "completed", "failed", "cancelled"] as const;
export type JobState = (typeof STATES)[number];
export const NAMES = ["type", "key", "from", "to"] as const;

export interface JobFilter {
  status?: JobState[];
  task_type?: string;
  idempotency_key?: string;
  execute_from?: string;
  execute_to?: string;
}

export function filterOf(url: Url): JobFilter {
  const state = STATES.find((one) => one === url.one("state"));
  const filter: JobFilter = {};
  if (state !== undefined) filter.status = [state];
  if (url.one("type") !== "") filter.task_type = url.one("type");
  if (url.one("key") !== "") filter.idempotency_key = url.one("key");
  if (url.one("from") !== "") filter.execute_from = url.one("from");
  if (url.one("to") !== "") filter.execute_to = url.one("to");
  return filter;
}
