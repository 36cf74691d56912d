/** Who did what, when, to what; what it was before and after. */
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
  const words = all.slice(0, SHORT_MAX).map(({ place, before, after }) => `${place || "all"}: ${before === null ? "" : `${before} → `}${after ?? "taken out"}`);
  return words.join(", ") + (all.length > SHORT_MAX ? " …" : "");
}

export default function AuditView() {
  const url = useUrl();
  const [action, actor, subject] = [url.one("action"), url.one("actor"), url.one("subject")];
  const asked = { action_prefix: action || undefined, actor: actor || undefined, subject: subject || undefined };
  const pages = usePages({
    queryKey: ["audit", asked],
    load: (cursor, signal) => get("/v1/audit", { query: { ...asked, cursor, limit: 100 }, signal }),
    every: 10_000,
  });
  return (
    <View title="Audit">
      <Filters names={["action", "actor", "subject"]}>
        <TextFilter name="action" label="Action" placeholder="how it begins: jobs." width={200} first />
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
            <EmptyState title="No action matches so far">A page looks at 10,000 actions at most; the next one is being asked for.</EmptyState>
          ) : action === "" && actor === "" && subject === "" ? (
            <EmptyState title="There is no action yet">Every change by a person or a program is listed here, with what it was before and after.</EmptyState>
          ) : (
            <EmptyState title="No action matches">Leave out a filter. An action is compared from its beginning on, as jobs.cancel; who did it and the subject, as job:42, are compared whole.</EmptyState>
          )
        }
      />
      <AuditDrawer id={url.one("line")} line={pages.rows?.find((one) => one.id === url.one("line"))} asked={pages.rows !== undefined} onClose={() => url.set({ line: null })} />
    </View>
  );
}
