/** The overview: what is due and late, how fast it goes, when we are caught up, and what needs a look. */
import { lazy, Suspense, useEffect } from "react";
import { Skeleton } from "@mantine/core";
import { useFreshness, useOverview, type Overview } from "../../app/live";
import { markUsable } from "../../app/usable";
import { EmptyState } from "../../parts/EmptyState";
import { Panel, Panels, Scroll } from "../../parts/Panel";
import { View } from "../../parts/View";
import { Alerts } from "./Alerts";
import { Capabilities } from "./Capabilities";
import { LatestJobs } from "./LatestJobs";
import { Leases, Workers } from "./Processes";
import { JobTiles } from "./JobTiles";

const Charts = lazy(() => import("./Charts"));
const whole = (overview: Overview) => overview;

export default function OverviewView() {
  const overview = useOverview(whole);
  const { source, why } = useFreshness();
  useEffect(() => {
    if (overview !== null) markUsable();
  }, [overview]);
  return (
    <View title="Overview">
      {overview !== null && <Shown overview={overview} />}
      {overview === null && source !== "away" && <Coming />}
      {overview === null && source === "away" && (
        <EmptyState title="There is no snapshot yet">{why ?? "It is asked for again every few seconds."}</EmptyState>
      )}
    </View>
  );
}

function Shown({ overview }: { overview: Overview }) {
  return (
    <Scroll>
      <JobTiles jobs={overview.jobs} />
      <Suspense fallback={<ChartsComing />}>
        <Charts />
      </Suspense>
      <Panels>
        <Alerts alerts={overview.alerts} />
        <Workers workers={overview.workers} />
        <Leases leases={overview.leases} />
      </Panels>
      <Panels>
        <Capabilities overview={overview} />
        <LatestJobs jobs={overview.jobs.latest} />
      </Panels>
    </Scroll>
  );
}

function ChartsComing() {
  return (
    <Panels>
      {["Throughput", "Backlog", "Lateness"].map((title) => (
        <Panel key={title} title={title}>
          <Skeleton height={170} />
        </Panel>
      ))}
    </Panels>
  );
}

function Coming() {
  return (
    <Scroll>
      <Skeleton height={96} />
      <ChartsComing />
      <Skeleton height={190} />
    </Scroll>
  );
}
