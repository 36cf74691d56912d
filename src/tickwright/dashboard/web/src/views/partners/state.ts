/** Whether a partner is called now, and if not, why. */
import type { Schemas } from "../../api/client";
import type { Tone } from "../../parts/StateBadge";

const TONES: Record<string, Tone> = { called: "good", paused: "warn", quiet: "idle", retry_after: "warn", breaker_open: "bad", on_trial: "warn" };

/** Return the state of the figures; without them, the state that the partner's row shows. */
export function stateOf(partner: Schemas["PartnerView"], figures?: Schemas["PartnerFigures"]): { state: string; tone: Tone } {
  const state = figures?.state ?? stateOfRow(partner);
  return { state, tone: TONES[state] ?? "idle" };
}

function stateOfRow(partner: Schemas["PartnerView"]): string {
  if (partner.paused_at !== null) return "paused";
  if (partner.breaker === "open") return "breaker_open";
  if (partner.breaker === "half_open") return "on_trial";
  return partner.blocked_until === null ? "called" : "retry_after";
}
