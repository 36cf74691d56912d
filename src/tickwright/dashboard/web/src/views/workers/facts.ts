/** The facts that a process reports with its heartbeat; any of them may be missing. */
import type { Schemas } from "../../api/client";
import type { Tone } from "../../parts/StateBadge";

type Worker = Pick<Schemas["WorkerView"], "alive" | "drain_requested_at" | "lost_at" | "facts">;
type Table = Record<string, unknown>;

export interface TypeFigures {
  name: string;
  starts: number;
  running: number;
  completed: number;
  failed: number;
}

const tableOf = (value: unknown): Table => (typeof value === "object" && value !== null ? (value as Table) : {});
const numberOf = (value: unknown): number => Number(JSON.stringify(value ?? 0));
const counters = (worker: Worker): Table => tableOf(tableOf(worker.facts)["counters"]);

/** Return the state of a session. */
export function stateOf(worker: Worker): { state: string; tone: Tone } {
  if (worker.lost_at !== null) return { state: "lost", tone: "bad" };
  if (!worker.alive) return { state: "gone", tone: "idle" };
  return worker.drain_requested_at === null ? { state: "alive", tone: "good" } : { state: "draining", tone: "warn" };
}

/** Return the numbers of running jobs, starts, and jobs queued in memory; `null` for a process that runs no jobs. */
export function jobsOf(worker: Worker): { running: number; queued: number; starts: number } | null {
  const jobs = counters(worker)["jobs"];
  if (jobs === undefined) return null;
  const table = tableOf(jobs);
  return { running: numberOf(table["running"]), queued: numberOf(table["queued"]), starts: numberOf(table["starts"]) };
}

/** Return what it runs, as its queues, types and needs say: `critical:50, *:30; types report.*`; `null` without limits. */
export function scopeOf(worker: Worker): string | null {
  const scope = tableOf(tableOf(worker.facts)["scope"]);
  const slots = Object.entries(tableOf(scope["slots"])).map(([queue, number]) => `${queue}:${numberOf(number)}`);
  const names = (part: string): string[] => (Array.isArray(scope[part]) ? [`${part} ${(scope[part] as unknown[]).join(", ")}`] : []);
  return [...(slots.length > 0 ? [slots.join(", ")] : []), ...names("types"), ...names("needs")].join("; ") || null;
}

/** Return its task types, those with the most starts first. */
export function typesOf(worker: Worker): TypeFigures[] {
  return Object.entries(tableOf(counters(worker)["types"]))
    .map(([name, figures]) => {
      const table = tableOf(figures);
      const ended = tableOf(table["ended"]);
      return {
        name,
        starts: numberOf(table["starts"]),
        running: numberOf(table["running"]),
        completed: numberOf(ended["completed"]),
        failed: numberOf(ended["failed"]) + numberOf(ended["retried"]),
      };
    })
    .sort((a, b) => b.starts - a.starts);
}

/** Return the figures of `polls` and `relay` by name. */
export function figuresOf(worker: Worker, part: "polls" | "relay"): [string, number][] {
  return Object.entries(tableOf(counters(worker)[part])).map(([name, value]) => [name, numberOf(value)]);
}
