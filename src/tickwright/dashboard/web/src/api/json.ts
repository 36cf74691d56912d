/**
 * JSON without loss: a browser's numbers are exact up to 2^53; ids and numbers of users may be greater.
 *
 * Ids are strings everywhere in the dashboard. Any other number that a browser would change is kept as it was written
 * (`JSON.rawJSON`), so that a payload is shown, and sent back, with all its digits. In a field with JSON of users
 * (`opaque.json`, made from the OpenAPI document) no value counts as an id.
 */
import opaque from "./opaque.json";

type Reviver = (this: unknown, key: string, value: unknown, context?: { source?: string }) => unknown;
interface RawJson {
  rawJSON(source: string): object;
  isRawJSON(value: unknown): boolean;
  parse(text: string, reviver: Reviver): unknown;
}

const raw = JSON as unknown as RawJson;
const OPAQUE = new Set<string>(opaque);
const ID = /^(id|ids|worker|fence|.*_ids?)$/;
const DIGITS = /^-?\d{1,19}$/;

/** Whether this browser can keep numbers as they are written; Chrome 114, Firefox 135, Safari 18.4 and later can. */
export function keepsNumbers(): boolean {
  return typeof raw.rawJSON === "function";
}

/** Parse `text`, with ids as strings. */
export function parse(text: string): unknown {
  return named(parseUsers(text), false);
}

/** Parse JSON of a user: no value in it counts as an id, and every number is kept as it was written. */
export function parseUsers(text: string): unknown {
  return raw.parse(text, (_key, value, context) => {
    const source = context?.source;
    return typeof value === "number" && source !== undefined && String(value) !== source ? raw.rawJSON(source) : value;
  });
}

/**
 * Return the number that a user typed, with all its digits; `null` for an empty field. Other text stays as it was typed,
 * so that the API refuses it, and no form treats it as an empty field.
 */
export function readNumber(typed: string): number | null {
  const text = typed.trim();
  if (text === "") return null;
  try {
    const value = parseUsers(text);
    return (typeof value === "number" || raw.isRawJSON(value) ? value : text) as number;
  } catch {
    return text as unknown as number;
  }
}

/** Parse JSON that a user typed, or return the problem. */
export function readJson(text: string): { value: unknown; problem: string | null } {
  try {
    return { value: parseUsers(text), problem: null };
  } catch (error) {
    return { value: null, problem: `this is not JSON: ${error instanceof Error ? error.message : String(error)}` };
  }
}

/** Parse a JSON object that a user typed, or return the problem. */
export function readObject(text: string): { value: Record<string, unknown> | null; problem: string | null } {
  const { value, problem } = readJson(text);
  if (problem !== null) return { value: null, problem };
  const isObject = typeof value === "object" && value !== null && !Array.isArray(value) && !raw.isRawJSON(value);
  return isObject ? { value: value as Record<string, unknown>, problem: null } : { value: null, problem: "enter an object: { … }" };
}

/** JSON of a user as a whole body: it is sent as it is. */
export class Users {
  constructor(readonly toJSON: () => unknown) {}
}

function named(value: unknown, isId: boolean): unknown {
  if (isId && typeof value === "number") return String(value);
  if (typeof value !== "object" || value === null) return value;
  if (raw.isRawJSON(value)) return asWritten(value, isId);
  if (Array.isArray(value)) return value.map((item) => named(item, isId));
  const record = value as Record<string, unknown>;
  for (const key of Object.keys(record)) {
    if (!OPAQUE.has(key)) record[key] = named(record[key], ID.test(key));
  }
  return record;
}

/** An id becomes a string. Another number outside of users' JSON is a figure; a double is precise enough for it. */
function asWritten(value: object, isId: boolean): unknown {
  const source = JSON.stringify(value);
  return isId ? source : Number(source);
}

/** Return `value` as a body: ids are strings in the dashboard and integers on the wire. */
export function stringify(value: unknown): string {
  return JSON.stringify(numbered(value, false));
}

function numbered(value: unknown, isId: boolean): unknown {
  if (isId && typeof value === "string" && DIGITS.test(value)) return raw.rawJSON(value);
  if (typeof value !== "object" || value === null || raw.isRawJSON(value) || value instanceof Users) return value;
  if (Array.isArray(value)) return value.map((item) => numbered(item, isId));
  const entries = Object.entries(value).map(([key, item]) => {
    return [key, OPAQUE.has(key) ? item : numbered(item, ID.test(key))];
  });
  return Object.fromEntries(entries) as unknown;
}

/** Return JSON of a user as indented text, with all its digits. */
export function pretty(value: unknown): string {
  return JSON.stringify(value, null, 2) ?? "null";
}
