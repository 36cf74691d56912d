/** Jobs: states, filters, the list, and the drawer of the one that the URL names. */
import { SegmentedControl } from "@mantine/core";
import { get, type Schemas } from "../../api/client";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { Instant } from "../../parts/Instant";
import { StateBadge } from "../../parts/StateBadge";
import { usePages } from "../../parts/usePages";
import { useSelection } from "../../parts/useSelection";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { filterOf, STATES } from "./filter";
import { JobDrawer } from "./JobDrawer";
import { JobFilters } from "./JobFilters";

type Job = Schemas["JobView"];

const COLUMNS: Column<Job>[] = [
  { id: "id", header: "Id", width: 110, cell: (job) => job.id },
  { id: "type", header: "Task type", width: 200, cell: (job) => <span title={job.task_type}>{job.task_type}</span> },
  { id: "state", header: "State", width: 120, cell: (job) => <StateBadge state={job.status} /> },
  { id: "due", header: "Due", width: 170, hide: "sm", cell: (job) => <Instant at={job.due_at} /> },
  { id: "attempts", header: "Attempts", width: 84, align: "right", hide: "sm", cell: (job) => `${job.attempts}/${job.max_attempts}` },
  { id: "ended", header: "Ended", width: 130, hide: "md", cell: (job) => <Instant at={job.completed_at} ago /> },
  { id: "error", header: "Error", hide: "sm", cell: (job) => <span title={job.error_message ?? ""}>{job.error_message}</span> },
];

export default function JobsView() {
  const url = useUrl();
  const filter = filterOf(url);
  const selection = useSelection();
  const pages = usePages({
    queryKey: ["jobs", filter],
    load: (cursor, signal) => get("/v1/jobs", { query: { ...filter, cursor, limit: 100 }, signal }),
  });
  return (
    <View title="Jobs">
      <SegmentedControl
        aria-label="State"
        value={url.one("state")}
        onChange={(state) => url.set({ state })}
        data={[{ value: "", label: "All" }, ...STATES.map((state) => ({ value: state, label: state }))]}
      />
      <JobFilters />
      <DataTable
        label="Jobs, newest first"
        columns={COLUMNS}
        pages={pages}
        rowKey={(job) => job.id}
        rowName={(job) => `job ${job.id}`}
        onOpen={(job) => url.set({ job: job.id }, true)}
        openKey={url.one("job")}
        selection={selection}
        empty={<EmptyState title="No job matches">Leave out a filter, or schedule one with Python, SQL, REST or the command line.</EmptyState>}
      />
      <JobDrawer id={url.one("job")} onClose={() => url.set({ job: null })} />
    </View>
  );
}
