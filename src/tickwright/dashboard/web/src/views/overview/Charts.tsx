/** The last fifteen minutes as lines. */
import { useMemo } from "react";
import { useSeries } from "../../app/live";
import type { Series } from "../../app/series";
import { Chart } from "../../parts/Chart";
import { spoken } from "../../parts/Duration";
import { count, rate } from "../../parts/Figure";
import { Panel, Panels } from "../../parts/Panel";

export default function Charts() {
  const series = useSeries();
  const at = useMemo(() => (series?.at ?? []).map((one) => Date.parse(one) / 1000), [series]);
  if (series === null) return null;
  return (
    <Panels>
      <Throughput at={at} series={series} />
      <Panel title="Backlog">
        <Chart label="Jobs that are due, over time" at={at} lines={[{ name: "due", color: "busy", values: series.due, fill: true }]} format={count} whole />
      </Panel>
      <Panel title="Lateness">
        <Lateness at={at} series={series} />
      </Panel>
    </Panels>
  );
}

function Throughput({ at, series }: { at: number[]; series: Series }) {
  const lines = [
    { name: "started", color: "busy", values: series.started_per_s },
    { name: "completed", color: "good", values: series.completed_per_s },
    { name: "failed", color: "bad", values: series.failed_per_s },
  ];
  return (
    <Panel title="Throughput per second">
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
