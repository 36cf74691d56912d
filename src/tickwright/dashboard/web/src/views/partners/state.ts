/** Whether a partner is called now, in a word. */
import type { Schemas } from "../../api/client";
import type { Tone } from "../../parts/StateBadge";

const TONES: Record<string, Tone> = { called: "good", paused: "warn", quiet: "idle", retry_after: "warn", breaker_open: "bad", on_trial: "warn" };

/** Return the state that the figures say, or the one that can be told without them. */
export function stateOf(partner: Schemas["PartnerView"], figures?: Schemas["PartnerFigures"]): { state: string; tone: Tone } {
  const state = figures?.state ?? guessed(partner);
  return { state, tone: TONES[state] ?? "idle" };
}

function guessed(partner: Schemas["PartnerView"]): string {
  if (partner.paused_at !== null) return "paused";
  if (partner.breaker === "open") return "breaker_open";
  if (partner.breaker === "half_open") return "on_trial";
  return partner.blocked_until === null ? "called" : "retry_after";
}
