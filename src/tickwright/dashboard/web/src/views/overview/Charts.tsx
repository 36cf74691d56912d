/** Charts of the last fifteen minutes. */
import { useMemo, type ReactNode } from "react";
import { useSeries } from "../../app/live";
import { zone } from "../../app/prefs";
import type { Series } from "../../app/series";
import { Chart } from "../../parts/Chart";
import { spoken } from "../../parts/Duration";
import { count, rate } from "../../parts/Figure";
import { instantText } from "../../parts/Instant";
import { Panel, Panels } from "../../parts/Panel";
import classes from "./overview.module.css";

export default function Charts() {
  const series = useSeries();
  const at = useMemo(() => (series?.at ?? []).map((one) => Date.parse(one) / 1000), [series]);
  if (series === null) return null;
  const since = <Since at={series.at} />;
  return (
    <Panels>
      <Throughput at={at} series={series} since={since} />
      <Panel title="Backlog" side={since}>
        <Chart label="Jobs that are due, over time" at={at} lines={[{ name: "due", color: "busy", values: series.due, fill: true }]} format={count} whole />
      </Panel>
      <Panel title="Lateness" side={since}>
        <Lateness at={at} series={series} />
      </Panel>
    </Panels>
  );
}

const KEPT_MS = 14 * 60_000;

/** The start of the figures, if they cover less than fifteen minutes: they are kept only while a dashboard is open. */
function Since({ at }: { at: readonly string[] }) {
  const shown = zone.use();
  const first = at[0];
  if (first === undefined) return <span className={classes.since}>from now on</span>;
  if (Date.parse(at.at(-1) ?? first) - Date.parse(first) > KEPT_MS) return null;
  return (
    <span className={classes.since} title="Figures are kept for fifteen minutes, while a dashboard is open; none was open before">
      since {instantText(first, shown).slice(11)}
    </span>
  );
}

function Throughput({ at, series, since }: { at: number[]; series: Series; since: ReactNode }) {
  const lines = [
    { name: "started", color: "busy", values: series.started_per_s },
    { name: "completed", color: "good", values: series.completed_per_s },
    { name: "failed", color: "bad", values: series.failed_per_s },
  ];
  return (
    <Panel title="Throughput per second" side={since}>
      <Chart label="Jobs started, completed and failed per second, over time" at={at} lines={lines} format={rate} />
    </Panel>
  );
}

function Lateness({ at, series }: { at: number[]; series: Series }) {
  const lines = [
    { name: "p50", color: "good", values: series.p50_s },
    { name: "p99", color: "warn", values: series.p99_s },
  ];
  return <Chart label="Lateness, p50 and p99, over time" at={at} lines={lines} format={spoken} />;
}
