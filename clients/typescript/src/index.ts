export { Client, JobFailed, type ClientOptions, type ImportResult, type JobStatus, type JobSummary, type JobDetail } from "./client.js";
export { type ListOptions, type NewJob, type Page, type ScheduleOptions, type Scheduled } from "./client.js";
export { TickwrightError, Unreachable } from "./http.js";
export type { AnyJobs, Duration, JobMap, Payload, Value } from "./types.js";
export { Throttled, type BatchChunk, type ChunkResult, type EntityTask, type Poll, type PollAnswer, type WorkKind } from "./work.js";
export { Fail, Retry, Snooze, Worker, type Handler, type Job, type StopReason, type WorkerOptions } from "./worker.js";
