/**
 * JSON without loss: numbers of a browser end at 2^53, ids and the users' own numbers do not.
 *
 * Ids are strings everywhere in the page. Any other number that a browser would change is kept as it was written
 * (`JSON.rawJSON`), so that a payload is shown, and sent back, digit by digit. Inside a field of the user's own JSON
 * (`opaque.json`, made from the API's document) nothing counts as an id.
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

/** Return what `text` says, with ids as strings. */
export function parse(text: string): unknown {
  return named(parseUsers(text), false);
}

/** Return the user's own JSON: nothing in it counts as an id, and every number is kept as it was written. */
export function parseUsers(text: string): unknown {
  return raw.parse(text, (_key, value, context) => {
    const source = context?.source;
    return typeof value === "number" && source !== undefined && String(value) !== source ? raw.rawJSON(source) : value;
  });
}

/**
 * Return the number that a user typed, every digit of it; nothing for an empty field. What is no number stays as it was
 * typed, so that the API says what is wrong with it, and no form takes it for nothing.
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

/** Return the object that a user wrote, or what is wrong with it. */
export function readObject(text: string): { value: Record<string, unknown> | null; problem: string | null } {
  try {
    const value = parseUsers(text);
    const isObject = typeof value === "object" && value !== null && !Array.isArray(value) && !raw.isRawJSON(value);
    return isObject ? { value: value as Record<string, unknown>, problem: null } : { value: null, problem: "write an object: { … }" };
  } catch (error) {
    return { value: null, problem: `this is no JSON: ${error instanceof Error ? error.message : String(error)}` };
  }
}

/** The user's own JSON as a whole body: it is sent as it is. */
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

/** An id becomes a string; another number outside of the user's JSON is a figure, for which a double will do. */
function asWritten(value: object, isId: boolean): unknown {
  const source = JSON.stringify(value);
  return isId ? source : Number(source);
}

/** Return `value` as a body: ids that are strings in the page are integers on the wire. */
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

/** Return the user's JSON as text to read, every digit as it was sent. */
export function pretty(value: unknown): string {
  return JSON.stringify(value, null, 2) ?? "null";
}
