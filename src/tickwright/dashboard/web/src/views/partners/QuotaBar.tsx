/** The used share of a partner's quota: a bar, with the figures beside it. */
import type { Schemas } from "../../api/client";
import { percent, rate } from "../../parts/Figure";
import { Meter } from "../../parts/Meter";
import classes from "./partners.module.css";

export function QuotaBar({ name, quota }: { name: string; quota: Schemas["Quota"] }) {
  if (quota.rate_per_s === null) return <span className={classes.none}>no limit</span>;
  const { used } = quota;
  if (used === null) return <span className={classes.none}>– of {rate(quota.rate_per_s)}/s</span>;
  return (
    <span className={classes.quota}>
      <span>{percent(used)}</span>
      <Meter label={`Quota of ${name}`} ratio={used} tone={used >= 0.95 ? "bad" : used > 0.8 ? "warn" : "good"} />
      <span className={classes.none}>of {rate(quota.rate_per_s)}/s</span>
    </span>
  );
}
