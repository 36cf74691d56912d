/** Jobs: states with counts, filters, the list, bulk actions, and the drawer of the job that the URL names. */
import { Button } from "@mantine/core";
import { useEffect } from "react";
import { get, type Schemas } from "../../api/client";
import { useMay } from "../../app/session";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { count } from "../../parts/Figure";
import { Instant } from "../../parts/Instant";
import { StateBadge } from "../../parts/StateBadge";
import { usePages } from "../../parts/usePages";
import { useSelection } from "../../parts/useSelection";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { BulkMenu } from "./BulkMenu";
import { filterOf, isListOnly, listingOf } from "./filter";
import { JobDrawer } from "./JobDrawer";
import { JobFilters } from "./JobFilters";
import classes from "./jobs.module.css";
import { StateTabs } from "./StateTabs";

type Job = Schemas["JobView"];

const COLUMNS: Column<Job>[] = [
  { id: "id", header: "Id", width: 110, cell: (job) => job.id },
  { id: "type", header: "Task type", width: 200, cell: (job) => <span title={job.task_type}>{job.task_type}</span> },
  { id: "state", header: "State", width: 120, cell: (job) => <StateBadge state={job.status} /> },
  { id: "due", header: "Due", width: 170, hide: "sm", cell: (job) => <Instant at={job.due_at} /> },
  { id: "attempts", header: "Attempts", width: 88, align: "right", hide: "sm", cell: (job) => `${job.attempts}/${job.max_attempts}` },
  { id: "ended", header: "Ended", width: 130, hide: "md", cell: (job) => <Instant at={job.completed_at} ago /> },
  { id: "key", header: "Key", width: 150, hide: "md", cell: (job) => <span title={job.idempotency_key ?? ""}>{job.idempotency_key}</span> },
  { id: "error", header: "Error", hide: "sm", cell: (job) => <span title={job.error_message ?? ""}>{job.error_message}</span> },
];

export default function JobsView() {
  const url = useUrl();
  const filter = filterOf(url);
  const listing = listingOf(url);
  const mayAct = useMay("operator");
  const selection = useSelection();
  const isSearch = filter.text !== undefined;
  const pages = usePages({
    queryKey: ["jobs", "list", listing],
    load: (cursor, signal) => get("/v1/jobs", { query: { ...listing, cursor, limit: 100 }, signal }),
    every: isSearch ? false : 5_000,
    onScroll: !isSearch,
  });
  const searched = pages.pages.reduce((sum, page) => sum + page.searched, 0);
  const listed = JSON.stringify(listing);
  useEffect(() => selection.clear(), [listed]); // only jobs of the current list stay chosen
  return (
    <View title="Jobs" actions={mayAct && <BulkMenu selection={selection} filter={filter} listOnly={isListOnly(listing)} />}>
      <StateTabs filter={listing} />
      <JobFilters />
      <DataTable
        label="Jobs, newest first"
        columns={COLUMNS}
        pages={pages}
        rowKey={(job) => job.id}
        rowName={(job) => `job ${job.id}`}
        onOpen={(job) => url.set({ job: job.id }, true)}
        openKey={url.one("job")}
        {...(mayAct ? { selection } : {})}
        empty={<Empty searchable={pages.hasMore} filtered={listed !== "{}"} />}
      />
      {pages.hasMore && !pages.onScroll && (
        <div className={classes.further} role="status">
          {count(searched)} jobs were searched; there are more.
          <Button variant="default" size="compact-xs" loading={pages.busy} onClick={pages.more}>
            Search further
          </Button>
        </div>
      )}
      <JobDrawer id={url.one("job")} onClose={() => url.set({ job: null })} />
    </View>
  );
}

function Empty({ searchable, filtered }: { searchable: boolean; filtered: boolean }) {
  if (searchable) return <EmptyState title="Nothing found so far">Only the newest jobs were searched for the text. Search further, or narrow the filter.</EmptyState>;
  if (filtered) return <EmptyState title="No job matches">Remove a filter. Ended jobs of task types without history are deleted.</EmptyState>;
  return <EmptyState title="There is no job">Schedule one with Python, SQL, REST or tickwright jobs schedule.</EmptyState>;
}
