/** The states of nodes: their order, in which what needs attention is first, and how many of which are spoken. */
import { count } from "../../parts/Figure";
import { toneOf, type Tone } from "../../parts/StateBadge";

export const STATES = ["failed", "cancelled", "processing", "running", "pending", "waiting", "skipped", "completed"] as const;
export type NodeState = (typeof STATES)[number];
export type Counts = Readonly<Record<string, number>>;

/** Of jobs; inner workflows run. */
export const OPEN: readonly NodeState[] = ["waiting", "pending", "processing", "running"];

export const some = (counts: Counts) => STATES.filter((state) => (counts[state] ?? 0) > 0);
export const among = (counts: Counts, states: readonly NodeState[]) => states.reduce((sum, state) => sum + (counts[state] ?? 0), 0);
export const total = (counts: Counts) => Object.values(counts).reduce((sum, one) => sum + one, 0);

/** Return such as `3 failed · 12 processing · 37,211 completed`. */
export function spokenCounts(counts: Counts): string {
  if (total(counts) === 1) return some(counts)[0] ?? "";
  return some(counts).map((state) => `${count(counts[state] ?? 0)} ${state}`).join(" · "); // prettier-ignore
}

/** Return the tone of a state in a graph, in which the cancelled ones should be seen. */
export const toneIn = (state: string): Tone => (state === "cancelled" ? "warn" : toneOf(state));

/** Return the tone of a group: that of what needs attention most. */
export function toneOfCounts(counts: Counts): Tone {
  const first = some(counts)[0];
  return first === undefined ? "idle" : toneIn(first);
}
