/** The differences between two JSON documents, field by field. */
import { pretty } from "../api/json";

export interface Difference {
  /** The path of the field, with dots; empty for the whole document. */
  place: string;
  before: string | null;
  after: string | null;
}

/** At most so many are returned. */
export const SHOWN_MAX = 200;

/** Return the fields that differ, in the order of the documents. */
export function differencesOf(before: unknown, after: unknown): Difference[] {
  const found: Difference[] = [];
  walk("", before, after, found);
  return found;
}

function walk(place: string, before: unknown, after: unknown, found: Difference[]): void {
  if (found.length >= SHOWN_MAX) return;
  if (isTable(before) || isTable(after)) {
    const [old, now] = [isTable(before) ? before : {}, isTable(after) ? after : {}];
    if ((isTable(before) || before == null) && (isTable(after) || after == null)) {
      for (const name of new Set([...Object.keys(old), ...Object.keys(now)])) walk(place === "" ? name : `${place}.${name}`, old[name], now[name], found);
      return;
    }
  }
  const [old, now] = [textOf(before), textOf(after)];
  if (old !== now) found.push({ place, before: old, after: now });
}

function isTable(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value) && Object.getPrototypeOf(value) === Object.prototype;
}

const textOf = (value: unknown): string | null => (value === undefined ? null : typeof value === "string" ? value : pretty(value));
