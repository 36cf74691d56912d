import { pause, type Client } from "./client.js";
import { TickwrightError } from "./http.js";
import { durationText, type AnyJobs, type Duration, type JobMap, type Payload, type Value } from "./types.js";
import { callOf, Throttled, type BatchChunk, type ChunkResult, type ClaimedCall, type EntityTask, type Poll, type PollAnswer, type WorkKind } from "./work.js";

/** Throw it when another attempt cannot help: the job, or the execution of the chunk, fails at once. */
export class Fail extends Error {
  override readonly name = "Fail";
}

/** Throw it to fail this attempt; `after` is the least wait before the next one. */
export class Retry extends Error {
  override readonly name = "Retry";
  readonly after: Duration | undefined;

  constructor(message = "retry", options: { after?: Duration } = {}) {
    super(message);
    this.after = options.after;
  }
}

/** Throw it to be called again after `wait`; costs no attempt. */
export class Snooze extends Error {
  override readonly name = "Snooze";

  constructor(readonly wait: Duration) {
    super(`snoozed for ${wait}`);
  }
}

/** Why a handler must stop: the `reason` of its signal. Only the result of a `cancelled` or `shutdown` one still counts. */
export type StopReason = "cancelled" | "timeout" | "lost" | "shutdown";

/** One attempt of one job. */
export interface Job<P = unknown> {
  readonly id: number;
  readonly type: string;
  readonly payload: P;
  /** From 1. */
  readonly attempt: number;
  readonly maxAttempts: number;
  /** Rises with every attempt: pass it to the systems that you write to, and refuse a lower one there. */
  readonly fence: number;
  readonly executeAt: Date;
  readonly traceparent: string | null;
  /** Aborts when the handler must stop; its reason is a `StopReason`. */
  readonly signal: AbortSignal;
  /** Write the job's progress; return whether this worker still holds it. */
  progress(value: unknown): Promise<boolean>;
}

export type Handler<P = unknown, R = unknown> = (job: Job<P>) => R | Promise<R>;

export interface WorkerOptions<Jobs extends JobMap = AnyJobs> {
  client: Client<Jobs>;
  /** It works what has the target `remote:POOL`. */
  pool: string;
  /** Attempts at once; 10 by default, 1000 at the most. */
  concurrency?: number;
  /** For operators; the host and the process by default. */
  name?: string;
  /** After so long without a heartbeat, others have its jobs; that of the server by default. */
  lease?: Duration;
  /** How long running attempts may take to end after a request to stop; 25 s by default. */
  drainMs?: number;
  /** Called with errors that the worker survives, such as a server that does not answer. */
  onError?: (error: unknown) => void;
}

interface Attempt {
  id: number;
  fence: number;
  kind?: WorkKind;
}

interface Claimed extends Attempt {
  kind?: "job";
  type: string;
  payload: unknown;
  attempt: number;
  max_attempts: number;
  execute_at: string;
  timeout_ms: number;
  start_in_ms: number;
  begin: boolean;
  traceparent: string | null;
}

type Result = Attempt & Record<string, unknown>;

interface Session {
  token: string;
  heartbeatMs: number;
  leaseMs: number;
  renewedAt: number;
  /** Aborts when the session is lost. */
  lost: AbortController;
  claims: number;
  /** A claim had no answer: the next one says what is held. */
  unsure: boolean;
}

class Running {
  readonly controller = new AbortController();
  constructor(readonly attempt: Attempt) {}
}

type Work = Claimed | ClaimedCall;
// eslint-disable-next-line @typescript-eslint/no-explicit-any
type AnyHandler = (work: any) => unknown;

const CLAIM_WAIT = "20s";
const RESULTS_MAX = 500;
const RESULT_BYTES_MAX = 150_000;
const RETRY_MS = 500;
const LOCKED_MS = 1000;
const ABORTED_MS = 3000;

/** Claims what it has handlers for (jobs, polls, tasks, chunks) and runs them, until it is stopped. */
export class Worker<Jobs extends JobMap = AnyJobs> {
  readonly #options: WorkerOptions<Jobs>;
  readonly #concurrency: number;
  readonly #handlers: Record<WorkKind, Map<string, AnyHandler>> = { job: new Map(), poll: new Map(), task: new Map(), chunk: new Map() };
  readonly #running = new Map<number, Running>();
  readonly #stopping = new AbortController();
  #session: Session | undefined;
  /** Handlers that have not returned, also those of a lost session. */
  #busy = 0;
  #results: { session: Session; result: Result }[] = [];
  #wake: () => void = () => {};
  #flushing: Promise<void> | undefined;

  constructor(options: WorkerOptions<Jobs>) {
    this.#options = options;
    this.#concurrency = Math.min(1000, options.concurrency ?? 10);
  }

  /** Register the handler of a type, before `run`. What it returns is the job's result. */
  handle<Name extends keyof Jobs & string>(type: Name, handler: Handler<Payload<Jobs, Name>, Value<Jobs, Name> | void>): this {
    this.#handlers.job.set(type, handler);
    return this;
  }

  /** Register the courier of a partner, before `run`: it polls the partner for one tracker, and returns the answer. */
  poll(partner: string, handler: (poll: Poll) => PollAnswer | Promise<PollAnswer>): this {
    this.#handlers.poll.set(partner, handler);
    return this;
  }

  /** Register the handler of a module, before `run`: it runs to its end once per entity and window. */
  task<Party = Record<string, unknown>>(module: string, handler: (task: EntityTask<Party>) => unknown): this {
    this.#handlers.task.set(module, handler);
    return this;
  }

  /** Register the handler of a batch, before `run`: what it returns completes the chunk. */
  chunk<Fields = Record<string, unknown>>(
    batch: string,
    handler: (chunk: BatchChunk<Fields>) => ChunkResult | void | Promise<ChunkResult | void>,
  ): this {
    this.#handlers.chunk.set(batch, handler);
    return this;
  }

  /** Work until `stop`, a signal of the process, or a drain by an operator; resolves when everything has ended. */
  async run(options: { signals?: boolean } = {}): Promise<void> {
    const stop = () => this.stop();
    const signals = options.signals === false ? [] : (["SIGINT", "SIGTERM"] as const);
    for (const signal of signals) process.on(signal, stop);
    try {
      while (!this.#stopping.signal.aborted) {
        const session = await this.#retried(() => this.#register());
        if (session !== undefined) await this.#work(session);
      }
      await this.#leave();
    } finally {
      for (const signal of signals) process.off(signal, stop);
    }
  }

  /** Claim no more; let running attempts end. `run` resolves when they have. */
  stop(): void {
    this.#stopping.abort();
  }

  // ---------------------------------------------------------------- session

  async #register(): Promise<Session> {
    const sentAt = performance.now();
    const answer = await this.#options.client.http.send<{ session: string; lease_ms: number; heartbeat_ms: number }>(
      "POST",
      "/v1/worker/register",
      {
        body: {
          name: this.#options.name ?? `${process.env["HOSTNAME"] ?? "node"}:${process.pid}`,
          pool: this.#options.pool,
          types: [...this.#handlers.job.keys()],
          partners: [...this.#handlers.poll.keys()],
          modules: [...this.#handlers.task.keys()],
          batches: [...this.#handlers.chunk.keys()],
          client: "tickwright-js/0.1.0",
          lease: this.#options.lease === undefined ? undefined : durationText(this.#options.lease),
        },
      },
    );
    return {
      token: answer.session,
      heartbeatMs: answer.heartbeat_ms,
      leaseMs: answer.lease_ms,
      renewedAt: sentAt,
      lost: new AbortController(),
      claims: 0,
      unsure: false,
    };
  }

  async #work(session: Session): Promise<void> {
    this.#session = session;
    void this.#heartbeats(session);
    while (!session.lost.signal.aborted && !this.#stopping.signal.aborted) {
      const room = this.#concurrency - this.#busy;
      if (room <= 0) await this.#untilFree(session);
      else await this.#claim(session, room);
    }
  }

  async #claim(session: Session, room: number): Promise<void> {
    const signal = AbortSignal.any([session.lost.signal, this.#stopping.signal]);
    session.claims += 1;
    const body = { claim: session.claims, max: room, wait: CLAIM_WAIT, held: session.unsure ? this.#held() : undefined };
    try {
      const answer = await this.#call<{ jobs: Claimed[]; calls: ClaimedCall[]; drain: boolean }>(session, "claim", body, signal);
      session.unsure = false;
      if (session.lost.signal.aborted) return;
      if (answer.drain) this.stop();
      await this.#start(session, [...answer.jobs, ...answer.calls]);
    } catch (error) {
      session.unsure = true;
      if (signal.aborted) return;
      this.#survive(error);
      await pause(RETRY_MS, signal).catch(() => {});
    }
  }

  async #heartbeats(session: Session): Promise<void> {
    const ended = session.lost.signal;
    const leftMs = (most: number) => Math.max(0, Math.min(most, session.renewedAt + session.leaseMs - performance.now()));
    while (!ended.aborted) {
      await pause(leftMs(session.heartbeatMs), ended).catch(() => {});
      if (ended.aborted) return;
      const sentAt = performance.now();
      try {
        const timeout = AbortSignal.any([ended, AbortSignal.timeout(1 + Math.ceil(leftMs(session.heartbeatMs)))]);
        const body = { held: this.#held() };
        const answer = await this.#call<{ drain: boolean; stop: (Attempt & { reason: StopReason })[] }>(session, "heartbeat", body, timeout);
        session.renewedAt = sentAt;
        if (answer.drain) this.stop();
        for (const one of answer.stop) this.#abort(one, one.reason);
      } catch (error) {
        if (ended.aborted) return;
        this.#survive(error);
        if (leftMs(1) === 0) this.#lose(session);
      }
    }
  }

  /** Others have the jobs of this session: stop all attempts, and drop their results. */
  #lose(session: Session): void {
    if (session.lost.signal.aborted) return;
    session.lost.abort("lost");
    for (const running of this.#running.values()) running.controller.abort("lost" satisfies StopReason);
    this.#running.clear();
    this.#results = this.#results.filter((one) => one.session !== session);
    this.#wake();
  }

  async #leave(): Promise<void> {
    const session = this.#session;
    if (session === undefined || session.lost.signal.aborted) return;
    const allEnded = async () => {
      while (this.#running.size > 0 && !session.lost.signal.aborted) await this.#untilFree(session);
    };
    await within(allEnded(), this.#options.drainMs ?? 25_000);
    for (const running of this.#running.values()) running.controller.abort("shutdown" satisfies StopReason);
    await within(allEnded(), ABORTED_MS);
    await this.#flush();
    await this.#call(session, "close", {}).catch((error: unknown) => this.#survive(error)); // releases what is left
    session.lost.abort("lost");
  }

  // ---------------------------------------------------------------- attempts

  async #start(session: Session, works: readonly Work[]): Promise<void> {
    this.#busy += works.length;
    for (const work of works) this.#running.set(work.id, new Running(attemptOf(work)));
    const last = works.filter(begins).map(attemptOf);
    let begun = new Set<number>();
    if (last.length > 0) {
      const answer = await this.#retried(() => this.#call<{ begins: number[] }>(session, "begin", { jobs: last }), session);
      begun = new Set(answer?.begins);
    }
    for (const work of works) {
      const running = this.#running.get(work.id);
      if (running === undefined || session.lost.signal.aborted) this.#busy -= 1;
      else if (begins(work) && !begun.has(work.id)) this.#report(session, running, { outcome: "release" });
      else void this.#run(session, work, running);
    }
  }

  async #run(session: Session, claimed: Work, running: Running): Promise<void> {
    const { signal } = running.controller;
    if (isJob(claimed) && claimed.start_in_ms > 0) await pause(claimed.start_in_ms, signal).catch(() => {});
    const timer = setTimeout(() => running.controller.abort("timeout" satisfies StopReason), claimed.timeout_ms);
    let result: Record<string, unknown>;
    const started = !signal.aborted;
    try {
      signal.throwIfAborted();
      const [kind, name] = isJob(claimed) ? (["job", claimed.type] as const) : ([claimed.kind, claimed.name] as const);
      const handler = this.#handlers[kind].get(name);
      if (handler === undefined) throw new Fail(`no handler for the ${kind} ${name}`);
      const value = await handler(isJob(claimed) ? this.#job(session, claimed, signal) : callOf(claimed, this.#heldOf(session, claimed, signal)));
      result = { outcome: "complete", result: value };
    } catch (error) {
      result = resultOf(error, claimed.kind ?? "job");
      if (signal.reason === "cancelled") result = { outcome: "cancelled" };
      if (signal.reason === "shutdown") result = { outcome: "release", started };
    } finally {
      clearTimeout(timer);
    }
    if (signal.reason === "timeout") result = { outcome: "fail", code: "timeout", message: `stopped after ${claimed.timeout_ms} ms` };
    this.#report(session, running, result);
  }

  #job(session: Session, claimed: Claimed, signal: AbortSignal): Job {
    return {
      id: claimed.id,
      type: claimed.type,
      payload: claimed.payload,
      attempt: claimed.attempt,
      maxAttempts: claimed.max_attempts,
      executeAt: new Date(claimed.execute_at),
      traceparent: claimed.traceparent,
      ...this.#heldOf(session, claimed, signal),
    };
  }

  #heldOf(session: Session, claimed: Work, signal: AbortSignal) {
    return {
      fence: claimed.fence,
      signal,
      progress: async (value: unknown): Promise<boolean> => {
        const jobs = [{ ...attemptOf(claimed), progress: value ?? null }];
        const answer = await this.#call<{ done: number }>(session, "progress", { jobs });
        return answer.done === 1;
      },
    };
  }

  #abort(attempt: Attempt, reason: StopReason): void {
    const running = this.#running.get(attempt.id);
    if (running?.attempt.fence !== attempt.fence) return;
    running.controller.abort(reason);
  }

  #held(): Attempt[] {
    const unsent = this.#results.map(({ result }) => attemptOf(result));
    return [...[...this.#running.values()].map((running) => running.attempt), ...unsent];
  }

  /** Resolve when an attempt ends, or the session is lost. */
  async #untilFree(session: Session): Promise<void> {
    if (session.lost.signal.aborted) return;
    await new Promise<void>((resolve) => {
      this.#wake = resolve; // a loss calls it, too
    });
  }

  // ---------------------------------------------------------------- results

  #report(session: Session, running: Running, result: Record<string, unknown>): void {
    this.#busy -= 1;
    if (this.#running.get(running.attempt.id) === running) this.#running.delete(running.attempt.id);
    if (!session.lost.signal.aborted) this.#results.push({ session, result: { ...running.attempt, ...result } });
    this.#wake();
    void this.#flush();
  }

  /** Write the results, a batch at a time: those that arrive meanwhile go into the next one. */
  #flush(): Promise<void> {
    this.#flushing ??= Promise.resolve()
      .then(() => this.#writeAll())
      .finally(() => {
        this.#flushing = undefined;
        if (this.#results.length > 0) void this.#flush();
      });
    return this.#flushing;
  }

  async #writeAll(): Promise<void> {
    while (this.#results.length > 0) {
      const session = this.#results[0]!.session;
      const batch = this.#batch(session);
      const body = { results: batch };
      try {
        const answer = await this.#call<{ stale: number[]; locked: number[] }>(session, "results", body);
        const again = new Set(answer.locked);
        this.#results = this.#results.filter(({ result }) => !batch.includes(result) || again.has(result.id));
        if (again.size > 0) await pause(LOCKED_MS);
      } catch (error) {
        if (session.lost.signal.aborted) continue;
        this.#survive(error);
        if (error instanceof TickwrightError && !error.retriable) this.#refused(batch, error);
        else await pause(RETRY_MS);
      }
    }
  }

  #batch(session: Session): Result[] {
    const batch: Result[] = [];
    let bytes = 0;
    for (const one of this.#results) {
      bytes += JSON.stringify(one.result).length;
      if (one.session !== session || batch.length >= RESULTS_MAX || (bytes > RESULT_BYTES_MAX && batch.length > 0)) break;
      batch.push(one.result);
    }
    return batch;
  }

  /** The server refuses one of these results for good, such as one that is too large: find it, and fail its job. */
  #refused(batch: readonly Result[], error: TickwrightError): void {
    const worst = batch.reduce((one, other) => (JSON.stringify(other).length > JSON.stringify(one).length ? other : one));
    const refused = this.#results.find(({ result }) => result === worst);
    if (refused === undefined) return;
    const attempt = attemptOf(worst);
    const isRefusal = worst["code"] === "result_refused";
    if (isRefusal) this.#results = this.#results.filter((one) => one !== refused);
    else refused.result = { ...attempt, outcome: "fail", code: "result_refused", message: error.message, final: true };
  }

  // ---------------------------------------------------------------- calls

  /** Make a call, which ends with the session at the latest: a connection may never answer. */
  async #call<Answer>(session: Session, name: string, body: unknown, signal: AbortSignal = session.lost.signal): Promise<Answer> {
    try {
      return await this.#options.client.http.send<Answer>("POST", `/v1/worker/${name}`, {
        body,
        headers: { "tickwright-session": session.token },
        signal,
      });
    } catch (error) {
      if (error instanceof TickwrightError && error.code === "session_lost") this.#lose(session);
      throw error;
    }
  }

  /** Try until it succeeds, the session is lost, or the worker stops; an error that stays is thrown. */
  async #retried<Answer>(call: () => Promise<Answer>, session?: Session): Promise<Answer | undefined> {
    const signal = session?.lost.signal ?? this.#stopping.signal;
    while (!signal.aborted) {
      try {
        return await call();
      } catch (error) {
        if (error instanceof TickwrightError && !error.retriable && session === undefined) throw error;
        this.#survive(error);
        await pause(RETRY_MS, signal).catch(() => {});
      }
    }
    return undefined;
  }

  #survive(error: unknown): void {
    this.#options.onError?.(error);
  }
}

/** Wait for a promise, at most so long. */
async function within(promise: Promise<void>, milliseconds: number): Promise<void> {
  const over = new AbortController();
  await Promise.race([promise, pause(milliseconds, over.signal).catch(() => {})]);
  over.abort(); // else the timer would keep the process
}

function isJob(work: Work): work is Claimed {
  return work.kind === undefined || work.kind === "job";
}

function begins(work: Work): work is Claimed {
  return isJob(work) && work.begin;
}

function attemptOf(work: Attempt): Attempt {
  return { id: work.id, fence: work.fence, ...(work.kind === undefined ? {} : { kind: work.kind }) };
}

function resultOf(error: unknown, kind: WorkKind): Record<string, unknown> {
  if (error instanceof Throttled) {
    const retry_after = durationText(error.after);
    if (kind === "poll" || kind === "task") return { outcome: "throttled", retry_after };
    return { outcome: "fail", code: "throttled", message: error.message, retry_after };
  }
  if (error instanceof Snooze) return { outcome: "snooze", wait: durationText(error.wait) };
  if (error instanceof Fail) return { outcome: "fail", code: "handler_failed", message: error.message, final: true };
  if (error instanceof Retry) {
    const after = error.after === undefined ? undefined : durationText(error.after);
    return { outcome: "fail", code: "handler_retry", message: error.message, retry_after: after };
  }
  const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  return { outcome: "fail", message: text.slice(0, 10_000) };
}
