/** A state in one word. The colour repeats the word, so that no information depends on colour. */
import classes from "./parts.module.css";

export type Tone = "good" | "bad" | "warn" | "busy" | "idle";
const TONES: Record<string, Tone> = {
  completed: "good", finished: "good", done: "good", healthy: "good", closed: "good", alive: "good", flowing: "good",
  enabled: "good", active: "good", held: "good", resolved: "good", ok: "good", succeeded: "good", polled: "good",
  failed: "bad", critical: "bad", lost: "bad", stuck: "bad", open: "bad", gone: "bad", timed_out: "bad", dead: "bad",
  exception_occurred: "bad", overdue: "bad", reclaimed: "bad", firing: "bad", revoked: "bad",
  paused: "warn", warning: "warn", draining: "warn", half_open: "warn", late: "warn", released: "warn", retrying: "warn",
  skipped: "warn", expired: "warn", superseded: "warn", snoozed: "warn",
  processing: "busy", running: "busy", querying: "busy", merging: "busy", executing: "busy", working: "busy",
}; // prettier-ignore

export function toneOf(state: string): Tone {
  return TONES[state.toLowerCase()] ?? "idle";
}

export function StateBadge({ state, tone, title }: { state: string; tone?: Tone; title?: string }) {
  return (
    <span className={classes.badge} data-tone={tone ?? toneOf(state)} title={title}>
      {state.toLowerCase().replaceAll("_", " ")}
    </span>
  );
}
