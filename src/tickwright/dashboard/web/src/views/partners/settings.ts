/** A partner's settings, and the difference of two of them as a merge patch (RFC 7396: null removes a field). */
import { pretty, Users } from "../../api/json";

type Settings = Record<string, unknown>;

/** Return the merge patch from `was` to `wanted`. It has only fields that differ, so that other users' changes stay. */
export function changesOf(was: Settings, wanted: Settings): Settings {
  const changes: Settings = {};
  for (const name of new Set([...Object.keys(was), ...Object.keys(wanted)])) {
    const [before, after] = [was[name], wanted[name]];
    if (pretty(before) === pretty(after)) continue;
    changes[name] = !(name in wanted) ? null : isTable(before) && isTable(after) ? changesOf(before, after) : after;
  }
  return changes;
}

/** A JSON object; a number that is kept as it was written is an object too, but without a prototype. */
function isTable(value: unknown): value is Settings {
  return typeof value === "object" && value !== null && !Array.isArray(value) && Object.getPrototypeOf(value) === Object.prototype;
}

/** Return settings as a body that is sent as it is. */
export function bodyOf(settings: Settings): Record<string, never> {
  return new Users(() => settings) as unknown as Record<string, never>;
}
