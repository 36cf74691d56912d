/** The filters of the list of jobs: in the URL as the viewer reads them, in a request as the API wants them. */
import type { Url } from "../../parts/useUrl";

export const STATES = ["pending", "processing", "completed", "failed", "cancelled"] as const;
export type JobState = (typeof STATES)[number];
export const NAMES = ["text", "type", "key", "worker", "from", "to"] as const;

/** What a listing, its counts and an action on all that match have in common. */
export interface JobFilter {
  status?: JobState[];
  task_type?: string;
  idempotency_key?: string;
  text?: string;
  execute_from?: string;
  execute_to?: string;
}

export function filterOf(url: Url): JobFilter {
  const state = STATES.find((one) => one === url.one("state"));
  const filter: JobFilter = {};
  if (state !== undefined) filter.status = [state];
  if (url.one("type") !== "") filter.task_type = url.one("type");
  if (url.one("key") !== "") filter.idempotency_key = url.one("key");
  if (url.one("text") !== "") filter.text = url.one("text");
  if (url.one("from") !== "") filter.execute_from = url.one("from");
  if (url.one("to") !== "") filter.execute_to = url.one("to");
  return filter;
}

/** Return the filter of a listing; a worker can be looked for, not acted on. */
export function listingOf(url: Url): JobFilter & { worker?: string } {
  const worker = url.one("worker");
  return /^\d{1,19}$/.test(worker) ? { ...filterOf(url), worker } : filterOf(url);
}

/** Return the filter in words, for a question that says what it is about. */
export function spokenFilter(filter: JobFilter): string {
  const words = [
    filter.status?.join(" or "),
    filter.task_type && `of type ${filter.task_type}`,
    filter.idempotency_key && `with the key ${filter.idempotency_key}`,
    filter.text && `with the text “${filter.text}”`,
    filter.execute_from && `to be executed from ${filter.execute_from}`,
    filter.execute_to && `to be executed before ${filter.execute_to}`,
  ];
  return words.filter((word) => word !== undefined && word !== "").join(", ");
}
