/** A task type and its current figures. One may be missing: an idle type has no figures, jobs may have a type that is not registered. */
import type { Schemas } from "../../api/client";
import type { Tone } from "../../parts/StateBadge";

export type TaskType = Schemas["TaskTypeView"];

export interface Row {
  name: string;
  type: TaskType | null;
  now: Schemas["TypeFigures"] | null;
  cap: number;
}

export function merged(types: readonly TaskType[], figures: Schemas["TypeFiguresView"] | undefined): Row[] {
  const cap = figures?.capped_at ?? Infinity;
  const now = new Map(figures?.items.map((one) => [one.name, one]));
  const known = types.map((type) => ({ name: type.name, type, now: now.get(type.name) ?? null, cap }));
  const names = new Set(types.map((type) => type.name));
  const unknown = (figures?.items ?? []).filter((one) => !names.has(one.name)).map((one) => ({ name: one.name, type: null, now: one, cap }));
  return [...known, ...unknown].sort((a, b) => (a.name < b.name ? -1 : 1));
}

export function stateOf({ type }: Row): { state: string; tone: Tone } {
  if (type === null) return { state: "unknown", tone: "bad" };
  if (type.gone_at !== null) return { state: "gone", tone: "bad" };
  if (type.paused_at === null && type.queue_paused_at !== null) return { state: "queue paused", tone: "warn" };
  return type.paused_at === null ? { state: "enabled", tone: "good" } : { state: "paused", tone: "warn" };
}
