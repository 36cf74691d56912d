/** What a report type may be asked, as fields, and the conditions that they make. */
import { parseUsers } from "../../api/json";

export interface Parameter {
  name: string;
  type: string;
  required: boolean;
  otherwise: string;
}

/** Return the parameters of a definition; `null` where any condition may be given. */
export function parametersOf(definition: Record<string, unknown>): Parameter[] | null {
  const said = definition["parameters"];
  if (typeof said !== "object" || said === null) return null;
  return Object.entries(said as Record<string, unknown>).map(([name, words]) => {
    const { type, required, default: value } = (typeof words === "object" && words !== null ? words : { type: words }) as Record<string, unknown>;
    const otherwise = value == null ? "" : typeof value === "string" ? value : JSON.stringify(value);
    return { name, type: typeof type === "string" ? type : "text", required: required !== false && otherwise === "", otherwise };
  });
}

/** Return the conditions; what is empty is left out, what is no text is read as JSON where it is some. */
export function conditionsOf(parameters: readonly Parameter[], typed: Readonly<Record<string, string>>): Record<string, unknown> {
  const given = parameters.filter(({ name }) => (typed[name] ?? "").trim() !== "");
  return Object.fromEntries(given.map(({ name, type }) => [name, valueOf(type, typed[name] ?? "")]));
}

const TEXTS = new Set(["text", "date", "timestamp"]);

/** Anything that is no JSON stays as it was typed: the API says what it wants instead. */
function valueOf(type: string, typed: string): unknown {
  if (TEXTS.has(type)) return typed;
  try {
    return parseUsers(typed);
  } catch {
    return typed;
  }
}
