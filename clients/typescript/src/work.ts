import type { Duration } from "./types.js";

/** The kinds of work of a worker. Ids are unique among all of them. */
export type WorkKind = "job" | "poll" | "task" | "chunk";

/** Throw it from the handler of a poll or of a task when the partner requests silence: no process calls it before `after` is over. */
export class Throttled extends Error {
  override readonly name = "Throttled";

  constructor(readonly after: Duration) {
    super(`throttled for ${after}`);
  }
}

/** What polls, tasks and chunks have in common. */
interface Held {
  /** Rises with every claim: pass it to the systems that you write to, and refuse a lower one there. */
  readonly fence: number;
  /** Aborts when the handler must stop; its reason is a `StopReason`. */
  readonly signal: AbortSignal;
  /** Say how far the handler is; return whether this worker still holds the work. */
  progress(value: unknown): Promise<boolean>;
}

/** One poll of a tracker at a partner. */
export interface Poll extends Held {
  /** The same one whenever this poll is tried again. */
  readonly id: string;
  readonly trackerId: number;
  /** The partner's id: the tracking number. */
  readonly externalId: string;
  readonly accountId: string;
  readonly partner: string;
  readonly dueAt: Date;
}

/** What a partner answered. */
export interface PollAnswer {
  /** Null when the tracker is unknown to the partner, which changes nothing. */
  status: string | null;
  /** Since when the status holds. */
  at?: Date | string | null;
  /** At most 100, in any order. */
  events?: readonly { at: Date | string; text: string }[];
  /** The tracker ends; it also ends when the partner's settings list the status. */
  terminal?: boolean;
}

/** One entity, polled for one module in one window. */
export interface EntityTask<Party = Record<string, unknown>> extends Held {
  /** Equal on every attempt. */
  readonly id: string;
  readonly entityCode: string;
  readonly module: string;
  /** The entity's document; secrets in it are references, such as `${env:NAME}`. */
  readonly party: Party;
  /** When the last successful run began: fetch what has changed since then. Null for the first one. */
  readonly lastExecutedAt: Date | null;
  readonly windowAt: Date;
  /** No run begins after it. */
  readonly dropDeadAt: Date;
  readonly configVersion: number;
  /** Rises with each run of this entity and module; a store of the fetched data can refuse lower ones. */
  readonly runFence: number;
}

/** One chunk of an execution of a batch. The handler may get it again if it did not complete. */
export interface BatchChunk<Fields = Record<string, unknown>> extends Held {
  readonly batch: string;
  readonly executionId: number;
  /** From 0. */
  readonly number: number;
  readonly slotAt: Date;
  readonly version: number;
  /** Of the batch's audience; empty without one. */
  readonly members: readonly { readonly id: string; readonly fields: Fields }[];
}

/** What a chunk decided. */
export interface ChunkResult {
  /** At most one per client and execution; each is sent to the batch's action. */
  actions?: readonly { client_id: string; payload?: unknown }[];
  /** Members that could not be worked on, with the reason. */
  skipped?: readonly { client_id: string; problem: string }[];
}

/** Polls, tasks and chunks as the protocol has them. */
export interface ClaimedCall {
  id: number;
  kind: Exclude<WorkKind, "job">;
  name: string;
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  payload: any;
  timeout_ms: number;
  fence: number;
}

/** Return the argument of a handler. */
export function callOf(claimed: ClaimedCall, held: Held): Poll | EntityTask | BatchChunk {
  const { payload } = claimed;
  switch (claimed.kind) {
    case "poll":
      return {
        ...held,
        id: payload.poll_id,
        trackerId: payload.tracker_id,
        externalId: payload.external_id,
        accountId: payload.account_id,
        partner: payload.partner,
        dueAt: new Date(payload.due_at),
      };
    case "task":
      return {
        ...held,
        id: payload.task_id,
        entityCode: payload.entity_code,
        module: payload.task_type,
        party: payload.party,
        lastExecutedAt: payload.last_executed_at === null ? null : new Date(payload.last_executed_at),
        windowAt: new Date(payload.window_at),
        dropDeadAt: new Date(payload.drop_dead_at),
        configVersion: payload.config_version,
        runFence: payload.run_fence,
      };
    case "chunk":
      return {
        ...held,
        batch: payload.batch,
        executionId: payload.execution_id,
        number: payload.number,
        slotAt: new Date(payload.slot_at),
        version: payload.version,
        members: payload.members,
      };
  }
}
