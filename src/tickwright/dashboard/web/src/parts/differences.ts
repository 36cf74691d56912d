/** What a change did, word by word: two JSON documents as a list of places that differ. */
import { pretty } from "../api/json";

export interface Difference {
  /** Words with dots between them; empty for the whole. */
  place: string;
  before: string | null;
  after: string | null;
}

/** So many are shown; the whole documents stand beside them. */
export const SHOWN_MAX = 200;

/** Return the places that differ, in the order of the documents; `same` names those that do not are left out. */
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
      for (const word of new Set([...Object.keys(old), ...Object.keys(now)])) walk(place === "" ? word : `${place}.${word}`, old[word], now[word], found);
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
