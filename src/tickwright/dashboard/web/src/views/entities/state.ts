/** The state of an entity's polls for a module. */
import type { Schemas } from "../../api/client";
import type { Tone } from "../../parts/StateBadge";

type Module = Schemas["EntityModule"];

export function stateOf(module: Module, enabled: boolean): { state: string; tone: Tone } {
  if (!module.known) return { state: "unknown", tone: "bad" };
  if (!enabled || module.paused) return { state: "paused", tone: "warn" };
  if (module.running_since !== null) return { state: "running", tone: "busy" };
  if (module.failures > 0) return { state: "failing", tone: "bad" };
  if (module.last_window_at !== null && module.last_window_at === module.window_at) return { state: "done", tone: "good" };
  return { state: "due", tone: "idle" };
}
