/** The overview: backlog, lateness, throughput, the time until the backlog is gone, and what needs attention. */
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
      {overview === null && source !== "unavailable" && <Loading />}
      {overview === null && source === "unavailable" && (
        <EmptyState title="There is no snapshot yet">{why ?? "The dashboard requests one every few seconds."}</EmptyState>
      )}
    </View>
  );
}

function Shown({ overview }: { overview: Overview }) {
  return (
    <Scroll>
      <JobTiles jobs={overview.jobs} />
      <Suspense fallback={<ChartsLoading />}>
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

function ChartsLoading() {
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

function Loading() {
  return (
    <Scroll>
      <Skeleton height={96} />
      <ChartsLoading />
      <Skeleton height={190} />
    </Scroll>
  );
}
