/** How an account's few figures are shown, in the list and in its drawer. */
import type { Schemas } from "../../api/client";
import { spoken } from "../../parts/Duration";
import { Meter } from "../../parts/Meter";
import type { Tone } from "../../parts/StateBadge";
import classes from "./accounts.module.css";

type Account = Schemas["AccountView"];

/** Above this a tracker was not polled within a tenth of its interval behind its second. */
export const LATE_RATIO = 1.1;

/** Return the state of an account in a word, and how good it is. */
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

/** The interval that was asked for, and the one by which the trackers still stand where that differs. */
export function Interval({ account }: { account: Account }) {
  const wanted = minutes(account.polling_interval_minutes);
  if (account.placed_interval_minutes === account.polling_interval_minutes) return wanted;
  const placed = minutes(account.placed_interval_minutes);
  return (
    <span title={`Asked for: ${wanted}. Its trackers still stand by ${placed} and are being moved.`}>
      {placed} → {wanted}
    </span>
  );
}

/** Return minutes as people say them. */
export function minutes(value: number): string {
  return spoken(value * 60);
}
