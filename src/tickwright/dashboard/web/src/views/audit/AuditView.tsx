/** The audit trail: actor, time, action, subject, and the values before and after. */
import { get, type Schemas } from "../../api/client";
import { DataTable, type Column } from "../../parts/DataTable";
import { differencesOf } from "../../parts/differences";
import { EmptyState } from "../../parts/EmptyState";
import { Filters, TextFilter } from "../../parts/Filters";
import { Instant } from "../../parts/Instant";
import { usePages } from "../../parts/usePages";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { AuditDrawer } from "./AuditDrawer";

type Line = Schemas["AuditView"];

const COLUMNS: Column<Line>[] = [
  { id: "at", header: "When", width: 170, keep: true, cell: (one) => <Instant at={one.at} /> },
  { id: "actor", header: "Who", width: 140, cell: (one) => <span title={one.actor}>{one.actor}</span> },
  { id: "action", header: "Action", width: 170, cell: (one) => <span title={one.action}>{one.action}</span> },
  { id: "subject", header: "Subject", width: 220, hide: "sm", cell: (one) => <span title={one.subject}>{one.subject}</span> },
  { id: "what", header: "What changed", hide: "md", cell: (one) => <span title={shortly(one)}>{shortly(one)}</span> },
];

const SHORT_MAX = 4;

/** Return the first differences in one line. */
function shortly(line: Line): string {
  if (line.payload_hidden) return "hidden";
  const all = differencesOf(line.before, line.after);
  const parts = all.slice(0, SHORT_MAX).map(({ place, before, after }) => `${place || "all"}: ${before === null ? "" : `${before} → `}${after ?? "removed"}`);
  return parts.join(", ") + (all.length > SHORT_MAX ? " …" : "");
}

export default function AuditView() {
  const url = useUrl();
  const [action, actor, subject] = [url.one("action"), url.one("actor"), url.one("subject")];
  const filter = { action_prefix: action || undefined, actor: actor || undefined, subject: subject || undefined };
  const pages = usePages({
    queryKey: ["audit", filter],
    load: (cursor, signal) => get("/v1/audit", { query: { ...filter, cursor, limit: 100 }, signal }),
    every: 10_000,
  });
  return (
    <View title="Audit">
      <Filters names={["action", "actor", "subject"]}>
        <TextFilter name="action" label="Action" placeholder="begins with, such as jobs." width={200} first />
        <TextFilter name="actor" label="Who" placeholder="exact" width={160} />
        <TextFilter name="subject" label="Subject" placeholder="exact: job:42" width={220} />
      </Filters>
      <DataTable
        label="Actions, newest first"
        columns={COLUMNS}
        pages={pages}
        rowKey={(one) => one.id}
        onOpen={(one) => url.set({ line: one.id }, true)}
        openKey={url.one("line")}
        empty={
          pages.hasMore ? (
            <EmptyState title="No action matches so far">One request searches at most 10,000 actions; the next one is being sent.</EmptyState>
          ) : action === "" && actor === "" && subject === "" ? (
            <EmptyState title="There is no action yet">Every change by a person or a program is listed here, with the values before and after.</EmptyState>
          ) : (
            <EmptyState title="No action matches">Remove a filter. The filter Action compares the beginning, such as jobs.; Who and Subject, such as job:42, are compared as a whole.</EmptyState>
          )
        }
      />
      <AuditDrawer id={url.one("line")} line={pages.rows?.find((one) => one.id === url.one("line"))} loaded={pages.rows !== undefined} onClose={() => url.set({ line: null })} />
    </View>
  );
}
