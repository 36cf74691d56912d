/** A campaign as fields of a form, and the definition that they make. Empty fields are left out. */
import { parseUsers, pretty } from "../../../api/json";

export interface Fields {
  name: string;
  type: "MANUAL" | "AUTOMATIC";
  first: string;
  time_zone: string;
  repeats: "once" | "every" | "cron";
  unit: string;
  unit_type: string;
  cron: string;
  product_codes: string;
  audience: string;
  expression: string;
  target: string;
  release: string;
  overlap: string;
  misfire: string;
  misfire_max: string;
  misfire_grace: string;
  chunk_rows: string;
  rate: string;
  attempts: string;
  on_finished: string;
}
export type Definition = Record<string, unknown>;

const AUDIENCE = `{
  "source": "crm",
  "table": "public.clients",
  "key": "id",
  "fields": {"age": "int", "country": "string"}
}`;
export const NEW: Fields = {
  name: "", type: "MANUAL", first: "", time_zone: "UTC", repeats: "once", unit: "", unit_type: "HOURS", cron: "", product_codes: "",
  audience: AUDIENCE, expression: "client.age > 25", target: "", release: "finished", overlap: "skip", misfire: "one", misfire_max: "",
  misfire_grace: "", chunk_rows: "", rate: "", attempts: "", on_finished: "",
}; // prettier-ignore

const text = (value: unknown, otherwise = ""): string => (value == null ? otherwise : typeof value === "string" ? value : pretty(value));

/** Return the fields of a saved definition. */
export function fieldsOf(name: string, saved: Definition): Fields {
  const action = (saved["action"] ?? {}) as Record<string, unknown>;
  const codes = Array.isArray(saved["product_codes"]) ? (saved["product_codes"] as unknown[]).map((one) => text(one)) : [];
  return {
    name,
    type: saved["type"] === "AUTOMATIC" ? "AUTOMATIC" : "MANUAL",
    first: text(saved["date_time_execution"]),
    time_zone: text(saved["time_zone"], "UTC"),
    repeats: saved["cron"] != null ? "cron" : saved["restartable"] === true ? "every" : "once",
    unit: text(saved["restartable_unit"]),
    unit_type: text(saved["restartable_unit_type"], "HOURS"),
    cron: text(saved["cron"]),
    product_codes: codes.join("\n"),
    audience: pretty(saved["audience"]),
    expression: text(saved["expression"]),
    target: text(action["target"]),
    release: text(action["release"], "finished"),
    overlap: text(saved["overlap"], "skip"),
    misfire: text(saved["misfire"], "one"),
    misfire_max: text(saved["misfire_max"]),
    misfire_grace: text(saved["misfire_grace"]),
    chunk_rows: text(saved["chunk_rows"]),
    rate: text(saved["rate"]),
    attempts: text(saved["attempts"]),
    on_finished: text(saved["on_finished"]),
  };
}

/** Parse the audience, or return the problem. */
export function audienceOf(typed: string): { value: unknown } | { problem: string } {
  try {
    return { value: parseUsers(typed) };
  } catch (error) {
    return { problem: `this is not JSON: ${error instanceof Error ? error.message : String(error)}` };
  }
}

/** A number as a number; other text as it was typed, so that the API refuses it. */
const whole = (typed: string): unknown => (/^-?\d{1,15}$/.test(typed.trim()) ? Number(typed) : typed);

/** Return the definition; without the audience if it is not JSON. */
export function definitionOf(fields: Fields): Definition {
  const audience = audienceOf(fields.audience);
  const isCalendar = fields.type === "AUTOMATIC";
  const values: [string, unknown][] = [
    ["type", fields.type],
    ["date_time_execution", isCalendar ? fields.first.trim() : ""],
    ["time_zone", fields.time_zone.trim()],
    ["restartable", isCalendar && fields.repeats === "every" ? true : ""],
    ["restartable_unit", isCalendar && fields.repeats === "every" ? whole(fields.unit) : ""],
    ["restartable_unit_type", isCalendar && fields.repeats === "every" ? fields.unit_type : ""],
    ["cron", isCalendar && fields.repeats === "cron" ? fields.cron.trim() : ""],
    ["overlap", fields.overlap],
    ["misfire", fields.misfire],
    ["misfire_max", whole(fields.misfire_max)],
    ["misfire_grace", fields.misfire_grace.trim()],
    ["product_codes", fields.product_codes.split("\n").map((code) => code.trim()).filter(Boolean)],
    ["chunk_rows", whole(fields.chunk_rows)],
    ["rate", fields.rate.trim()],
    ["attempts", whole(fields.attempts)],
    ["on_finished", fields.on_finished.trim()],
    ["audience", "value" in audience ? audience.value : ""],
  ];
  const filled = values.filter(([, value]) => value !== "");
  const action = { ...(fields.target.trim() === "" ? {} : { target: fields.target.trim() }), release: fields.release };
  return { ...Object.fromEntries(filled), expression: fields.expression, action };
}
