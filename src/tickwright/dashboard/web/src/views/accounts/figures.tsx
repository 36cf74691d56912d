/** The figures of an account, for the list and the drawer. */
import type { Schemas } from "../../api/client";
import { spoken } from "../../parts/Duration";
import { percent, rate } from "../../parts/Figure";
import { Meter } from "../../parts/Meter";
import type { Tone } from "../../parts/StateBadge";
import classes from "./accounts.module.css";

type Account = Schemas["AccountView"];

/** Above this lag, a tracker was polled more than a tenth of its interval late. */
export const LATE_RATIO = 1.1;

/** Return the state of an account, and its tone. */
export function stateOf(account: Account): { state: string; tone: Tone } {
  if (account.paused_at !== null) return { state: "paused", tone: "warn" };
  if (account.stale_since !== null) return { state: "lagging", tone: "bad" };
  if (account.lag_ratio === null) return { state: "not judged", tone: "idle" };
  return { state: "fresh", tone: "good" };
}

/** The greatest lag of the last interval; the bar is full at two intervals. */
export function Lag({ account }: { account: Account }) {
  const lag = account.lag_ratio;
  if (lag === null) return <span className={classes.none}>–</span>;
  const tone = account.stale_since !== null ? "bad" : lag > LATE_RATIO ? "warn" : "good";
  return (
    <span className={classes.lag}>
      <span>{lag.toFixed(2)}</span>
      <Meter label={`Lag of ${account.account_id}`} ratio={lag / 2} tone={tone} />
    </span>
  );
}

/** The rest of the error budget of a month. The bar empties as it is used up; it is full and red if it is overdrawn. */
export function Budget({ account }: { account: Pick<Schemas["AccountLine"], "account_id" | "error_budget_left"> }) {
  const left = account.error_budget_left;
  if (left === null) return <span className={classes.none}>–</span>;
  return (
    <span className={classes.left} title={left < 0 ? `overdrawn by ${percent(-left)}` : undefined}>
      <span>{left < 0 ? "overdrawn" : percent(left)}</span>
      <Meter label={`Budget left of ${account.account_id}`} ratio={left < 0 ? 1 : left} tone={budgetTone(left)} />
    </span>
  );
}

export function budgetTone(left: number): Tone {
  return left <= 0 ? "bad" : left < 0.25 ? "warn" : "good";
}

/** At a rate of 1 the budget lasts for a month exactly; at 14.4 for two days. */
export function BurnRate({ rate: value }: { rate: number | null }) {
  if (value === null) return <span className={classes.none}>–</span>;
  return <span data-tone={value > 14.4 ? "bad" : undefined} className={classes.rate}>{rate(value)}</span>;
}

/** Return a share as a percentage with at most two decimals. */
export function exact(share: number): string {
  return `${+(share * 100).toFixed(2)}%`;
}

/** The interval that is set, and the one at which the trackers are placed, if they differ. */
export function Interval({ account }: { account: Account }) {
  const wanted = minutes(account.polling_interval_minutes);
  if (account.placed_interval_minutes === account.polling_interval_minutes) return wanted;
  const placed = minutes(account.placed_interval_minutes);
  return (
    <span title={`Set: ${wanted}. Its trackers are still placed at ${placed} and are being moved.`}>
      {placed} → {wanted}
    </span>
  );
}

/** Return minutes as text. */
export function minutes(value: number): string {
  return spoken(value * 60);
}
