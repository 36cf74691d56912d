/** The kinds of dead letters: jobs and messages are in the database; entity tasks and report calls are in RabbitMQ. */
import { get, post, type Schemas } from "../../api/client";
import { Users } from "../../api/json";

export type StoredKind = "job" | "outbox";
export type QueuedKind = "fanout" | "reports";
export type Kind = StoredKind | QueuedKind;

interface Labels {
  /** Of the tab. */
  label: string;
  one: string;
  many: string;
  subject: string;
  subjectWidth: number;
}

export const LABELS: Record<Kind, Labels> = {
  job: { label: "Jobs", one: "job", many: "jobs", subject: "Task type or destination", subjectWidth: 260 },
  outbox: { label: "Messages", one: "message", many: "messages", subject: "Task type or destination", subjectWidth: 260 },
  fanout: { label: "Entity tasks", one: "entity task", many: "entity tasks", subject: "Module", subjectWidth: 200 },
  reports: { label: "Report calls", one: "report call", many: "report calls", subject: "Listener", subjectWidth: 200 },
};

/** Return the kind that the URL names; jobs without one. */
export function kindOf(text: string): Kind {
  return Object.hasOwn(LABELS, text) ? (text as Kind) : "job";
}

/** A dead letter of a queue. */
export interface Queued {
  /** The key of its row; several messages may have the same id, or none. */
  key: string;
  /** `null`: it can only be requeued with all. */
  id: string | null;
  subject: string | null;
  /** The entity's code or the report's id. */
  about: string | null;
  reason: string;
  error: string;
  diedAt: string | null;
  body: string | null;
  hidden: boolean;
}

export interface QueuedPage {
  items: Queued[];
  /** How many there are in all. */
  count: number;
}

/** So many are shown, the oldest first. */
const SHOWN_MAX = 100;

export async function queued(kind: QueuedKind, subject: string, signal: AbortSignal): Promise<QueuedPage> {
  const limit = SHOWN_MAX;
  if (kind === "fanout") {
    const page = await get("/v1/dead-letters/fanout", { query: { task_type: subject || undefined, limit }, signal });
    return { count: page.count, items: keyed(page.items.map((one) => ({ ...common(one), subject: one.task_type, about: one.entity_code }))) };
  }
  const page = await get("/v1/dead-letters/reports", { query: { listener: subject || undefined, limit }, signal });
  return { count: page.count, items: keyed(page.items.map((one) => ({ ...common(one), subject: one.listener, about: one.report_id }))) };
}

function common(one: Schemas["DeadTaskView"] | Schemas["DeadCallView"]) {
  return { id: one.id, reason: one.reason, error: one.error_message, diedAt: one.died_at, body: one.body, hidden: one.payload_hidden };
}

function keyed(letters: Omit<Queued, "key">[]): Queued[] {
  const seen = new Map<string, number>();
  return letters.map((one) => {
    const name = one.id ?? "without id";
    const times = (seen.get(name) ?? 0) + 1;
    seen.set(name, times);
    return { ...one, key: times === 1 && one.id !== null ? name : `${name} #${times}` };
  });
}

export const CALL_MAX = 1000;
type Request = Schemas["DeadMessagesRequest"];

/** Requeue at most a thousand. Ids of messages are strings, even if they consist of digits. */
export function requeue(kind: QueuedKind, request: Request): Promise<Schemas["DeadMessagesRequeued"]> {
  const body = new Users(() => request) as unknown as Request;
  return kind === "fanout" ? post("/v1/dead-letters/fanout/requeue", { body }) : post("/v1/dead-letters/reports/requeue", { body });
}
