/** The parameters of a report type as fields of a form, and the conditions that they make. */
import { parseUsers } from "../../api/json";

export interface Parameter {
  name: string;
  type: string;
  required: boolean;
  otherwise: string;
}

/** Return the parameters of a definition; `null` if it accepts any condition. */
export function parametersOf(definition: Record<string, unknown>): Parameter[] | null {
  const parameters = definition["parameters"];
  if (typeof parameters !== "object" || parameters === null) return null;
  return Object.entries(parameters as Record<string, unknown>).map(([name, declared]) => {
    const { type, required, default: value } = (typeof declared === "object" && declared !== null ? declared : { type: declared }) as Record<string, unknown>;
    const otherwise = value == null ? "" : typeof value === "string" ? value : JSON.stringify(value);
    return { name, type: typeof type === "string" ? type : "text", required: required !== false && otherwise === "", otherwise };
  });
}

/** Return the conditions. Empty fields are left out; values that are not texts are parsed as JSON if possible. */
export function conditionsOf(parameters: readonly Parameter[], typed: Readonly<Record<string, string>>): Record<string, unknown> {
  const given = parameters.filter(({ name }) => (typed[name] ?? "").trim() !== "");
  return Object.fromEntries(given.map(({ name, type }) => [name, valueOf(type, typed[name] ?? "")]));
}

const TEXTS = new Set(["text", "date", "timestamp"]);

/** Input that is not JSON stays as it was typed, so that the API refuses it. */
function valueOf(type: string, typed: string): unknown {
  if (TEXTS.has(type)) return typed;
  try {
    return parseUsers(typed);
  } catch {
    return typed;
  }
}
