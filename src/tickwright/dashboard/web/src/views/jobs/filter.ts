/** The filters of the list of jobs: read from the URL, as parameters of the API. */
import type { Url } from "../../parts/useUrl";

export const STATES = ["waiting", "pending", "processing", "completed", "failed", "cancelled"] as const;
export type JobState = (typeof STATES)[number];
export const NAMES = ["text", "type", "tag", "metadata", "group", "key", "worker", "workflow", "from", "to"] as const;

/** The filters that the listing, the counts and the bulk actions share. */
export interface JobFilter {
  status?: JobState[];
  task_type?: string;
  idempotency_key?: string;
  text?: string;
  tag?: string[];
  metadata?: string[];
  group?: string;
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
  const tags = partsOf(url.one("tag"));
  if (tags.length > 0) filter.tag = tags;
  if (url.one("metadata") !== "") filter.metadata = [url.one("metadata")];
  if (url.one("group") !== "") filter.group = url.one("group");
  if (url.one("from") !== "") filter.execute_from = url.one("from");
  if (url.one("to") !== "") filter.execute_to = url.one("to");
  return filter;
}

/** Return the parts of a text with commas, such as tags. */
export function partsOf(text: string): string[] {
  return [...new Set(text.split(",").map((part) => part.trim()).filter((part) => part !== ""))]; // prettier-ignore
}

/** The filters of the listing that bulk actions do not support. */
export interface Listing extends JobFilter {
  worker?: string;
  workflow?: string;
}

/** Return the filter of the listing. */
export function listingOf(url: Url): Listing {
  const listing: Listing = filterOf(url);
  for (const name of ["worker", "workflow"] as const) {
    if (/^\d{1,19}$/.test(url.one(name))) listing[name] = url.one(name);
  }
  return listing;
}

/** Return whether bulk actions do not support the filter of a listing: jobs that wait are acted on by their workflow. */
export function isListOnly(listing: Listing): boolean {
  return listing.worker !== undefined || listing.workflow !== undefined || listing.status?.includes("waiting") === true;
}

/** Return the filter as text, for a confirmation. */
export function spokenFilter(filter: JobFilter): string {
  const parts = [
    filter.status?.join(" or "),
    filter.task_type && `of type ${filter.task_type}`,
    filter.idempotency_key && `with the key ${filter.idempotency_key}`,
    filter.tag && `with the tag ${filter.tag.join(" and ")}`,
    filter.metadata && `with ${filter.metadata.join(" and ")} in the metadata`,
    filter.group && `of the group ${filter.group}`,
    filter.text && `with the text “${filter.text}”`,
    filter.execute_from && `to be executed from ${filter.execute_from}`,
    filter.execute_to && `to be executed before ${filter.execute_to}`,
  ];
  return parts.filter((part) => part !== undefined && part !== "").join(", ");
}
