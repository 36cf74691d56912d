import { Http, TickwrightError, type Endpoint } from "./http.js";
import { durationText, type AnyJobs, type Duration, type JobMap, type Payload, type Value } from "./types.js";

export type ClientOptions = Endpoint;
export type JobStatus = "waiting" | "pending" | "processing" | "completed" | "failed" | "cancelled";

export interface ScheduleOptions {
  /** When it is due; now by default. */
  at?: Date | string;
  /** How long from now it is due, by the database's clock. */
  delay?: Duration;
  /** The same key with the same request returns the job that exists. */
  key?: string;
  /** -100 to 100; higher is earlier, among jobs that are due. */
  priority?: number;
  maxAttempts?: number;
  timeout?: Duration;
  /** It must not start later. */
  expiresAt?: Date | string;
}

export interface NewJob<Jobs extends JobMap, Name extends keyof Jobs & string = keyof Jobs & string> extends ScheduleOptions {
  type: Name;
  payload: Payload<Jobs, Name>;
}

export interface Scheduled {
  id: number;
  /** False: a job with this key existed. */
  created: boolean;
}

/** A job in a list, with the names of the API. Instants are RFC 3339. */
export interface JobSummary {
  id: number;
  task_type: string;
  status: JobStatus;
  execute_at: string;
  due_at: string;
  attempts: number;
  max_attempts: number;
  priority: number;
  idempotency_key: string | null;
  error_message: string | null;
  created_at: string;
  started_at: string | null;
  completed_at: string | null;
  cancel_requested_at: string | null;
  fence: number;
}

export interface JobDetail<P = unknown, R = unknown> extends JobSummary {
  payload: P;
  result: R | null;
  progress: unknown;
}

export interface ListOptions<Jobs extends JobMap> {
  status?: JobStatus | readonly JobStatus[];
  type?: keyof Jobs & string;
  executeFrom?: Date | string;
  executeTo?: Date | string;
  key?: string;
  limit?: number;
  cursor?: string;
}

export interface Page {
  items: JobSummary[];
  next: string | null;
}

export interface ImportResult {
  lines: number;
  created: number;
  existing: number;
  rejected: number;
  rejects: { line: number; code: string; message: string }[];
}

/** The job that was waited for did not complete; `job` shows how it ended. */
export class JobFailed extends Error {
  override readonly name = "JobFailed";

  constructor(readonly job: JobDetail) {
    super(job.error_message ?? `job ${job.id} ended as ${job.status}`);
  }
}

const WAIT_MS = 10_000;
const POLL_MS = 500;
const FINAL: ReadonlySet<JobStatus> = new Set(["completed", "failed", "cancelled"]);

/** Schedules and reads jobs. `Jobs` declares the program's types: `new Client<{ "mail.send": { payload: Mail } }>(…)`. */
export class Client<Jobs extends JobMap = AnyJobs> {
  readonly http: Http;
  #waits = true;

  constructor(options: ClientOptions) {
    this.http = new Http(options);
  }

  /** Schedule one job; returns when it is committed. */
  async schedule<Name extends keyof Jobs & string>(
    type: Name,
    payload: Payload<Jobs, Name>,
    options: ScheduleOptions = {},
  ): Promise<Scheduled> {
    return this.http.send("POST", "/v1/jobs", { body: request({ ...options, type, payload }) });
  }

  /** Schedule many jobs in one request. A bad job is rejected and affects no other; `key` makes the upload repeatable. */
  async scheduleMany(jobs: Iterable<NewJob<Jobs>>, options: { key?: string } = {}): Promise<ImportResult> {
    const lines: string[] = [];
    for (const job of jobs) lines.push(JSON.stringify(request(job)));
    const headers: Record<string, string> = options.key === undefined ? {} : { "idempotency-key": options.key };
    return this.http.send("POST", "/v1/jobs:bulk", { text: lines.join("\n"), type: "application/x-ndjson", headers });
  }

  /** Return one job, live or finished. */
  async get<Name extends keyof Jobs & string>(id: number): Promise<JobDetail<Payload<Jobs, Name>, Value<Jobs, Name>>> {
    return this.http.send("GET", `/v1/jobs/${id}`);
  }

  /** Cancel a job. `requested`: it runs, and its worker is asked to stop it. */
  async cancel(id: number): Promise<"cancelled" | "requested"> {
    const done = await this.http.send<{ outcome: "cancelled" | "requested" }>("POST", `/v1/jobs/${id}/cancel`);
    return done.outcome;
  }

  /** Return one page of jobs, newest first. */
  async list(options: ListOptions<Jobs> = {}): Promise<Page> {
    return this.http.send("GET", "/v1/jobs", {
      query: {
        status: typeof options.status === "string" ? [options.status] : options.status,
        task_type: options.type,
        execute_from: instantText(options.executeFrom),
        execute_to: instantText(options.executeTo),
        idempotency_key: options.key,
        limit: options.limit,
        cursor: options.cursor,
      },
    });
  }

  /** Yield all jobs of a list, page by page. */
  async *listAll(options: ListOptions<Jobs> = {}): AsyncGenerator<JobSummary> {
    let cursor = options.cursor;
    do {
      const page = await this.list({ ...options, ...(cursor === undefined ? {} : { cursor }) });
      yield* page.items;
      cursor = page.next ?? undefined;
    } while (cursor !== undefined);
  }

  /**
   * Wait until a job has ended, and return its result.
   *
   * @throws JobFailed when it did not complete, a `TimeoutError` (DOMException) when it has not ended in time.
   */
  async result<Name extends keyof Jobs & string>(
    id: number,
    options: { timeout?: number; signal?: AbortSignal } = {},
  ): Promise<Value<Jobs, Name>> {
    const limits = [options.signal, options.timeout === undefined ? undefined : AbortSignal.timeout(options.timeout)];
    const signal = AbortSignal.any(limits.filter((one) => one !== undefined));
    for (;;) {
      const job = await this.#whenEnded<Name>(id, signal);
      if (job.status === "completed") return job.result as Value<Jobs, Name>;
      if (FINAL.has(job.status)) throw new JobFailed(job);
      if (!this.#waits) await pause(POLL_MS, signal);
    }
  }

  async #whenEnded<Name extends keyof Jobs & string>(id: number, signal: AbortSignal) {
    const path = `/v1/jobs/${id}`;
    type Found = JobDetail<Payload<Jobs, Name>, Value<Jobs, Name>>;
    if (this.#waits) {
      try {
        return await this.http.send<Found>("GET", path, { query: { wait: durationText(WAIT_MS) }, signal });
      } catch (error) {
        if (!(error instanceof TickwrightError && error.code === "unknown_parameter")) throw error;
        this.#waits = false; // a server of an earlier release
      }
    }
    return this.http.send<Found>("GET", path, { signal });
  }
}

/** Wait, at most until `signal` aborts; then reject with its reason. */
export function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

function request(job: { type: string; payload: unknown } & ScheduleOptions): Record<string, unknown> {
  const body: Record<string, unknown> = {
    task_type: job.type,
    payload: job.payload,
    execute_at: instantText(job.at),
    delay: job.delay === undefined ? undefined : durationText(job.delay),
    idempotency_key: job.key,
    priority: job.priority,
    max_attempts: job.maxAttempts,
    timeout: job.timeout === undefined ? undefined : durationText(job.timeout),
    expires_at: instantText(job.expiresAt),
  };
  return body; // JSON leaves undefined fields out
}

function instantText(at: Date | string | undefined): string | undefined {
  return at instanceof Date ? at.toISOString() : at;
}
