/** Firing alerts: the five most severe, and the number of each severity. */
import { Link } from "wouter";
import type { Overview } from "../../app/live";
import { Instant } from "../../parts/Instant";
import { Panel } from "../../parts/Panel";
import { StateBadge } from "../../parts/StateBadge";
import classes from "./overview.module.css";

export function Alerts({ alerts }: { alerts: Overview["alerts"] }) {
  const all = alerts.critical + alerts.warning + alerts.info;
  const numbers = (["critical", "warning", "info"] as const).filter((severity) => alerts[severity] > 0);
  const summary = numbers.map((severity) => `${alerts[severity]} ${severity}`).join(", ");
  const side = <Link href="/alerts">{summary || "all alerts"}</Link>;
  return (
    <Panel title="Alerts" side={side}>
      {all === 0 && <p className={classes.calm}>No alert fires.</p>}
      <ul className={classes.list}>
        {alerts.newest.map((alert) => (
          <li key={alert.id}>
            <div className={classes.line}>
              <StateBadge state={alert.severity} />
              <strong>{alert.rule}</strong>
              <span className={classes.quiet}>
                <Instant at={alert.fired_at} ago />
              </span>
            </div>
            <div className={classes.text} title={alert.summary}>{alert.summary}</div>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
