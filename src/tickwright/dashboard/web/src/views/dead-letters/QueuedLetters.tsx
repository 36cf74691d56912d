/** Dead letters that are in a queue, the oldest first: entity tasks of fan-out, and calls of reports. */
import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { updating } from "../../app/prefs";
import { useMay } from "../../app/session";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { count } from "../../parts/Figure";
import { Filters, TextFilter } from "../../parts/Filters";
import { Instant } from "../../parts/Instant";
import { useSelection } from "../../parts/useSelection";
import { useUrl } from "../../parts/useUrl";
import { LABELS, queued, type Queued, type QueuedKind } from "./kinds";
import { QueuedDrawer } from "./QueuedDrawer";
import { RequeueQueued } from "./RequeueQueued";
import classes from "./letters.module.css";

/** Reading takes the messages out of the queue for a moment, so this list is refreshed less often than others. */
const EVERY_MS = 15_000;

function columns(kind: QueuedKind): Column<Queued>[] {
  return [
    { id: "about", header: kind === "fanout" ? "Entity" : "Report", width: 150, cell: (one) => <span title={one.about ?? ""}>{one.about ?? "unreadable"}</span> },
    { id: "subject", header: LABELS[kind].subject, width: 150, cell: (one) => <span title={one.subject ?? ""}>{one.subject}</span> },
    { id: "died", header: "Given up", width: 130, cell: (one) => <Instant at={one.diedAt} ago /> },
    { id: "reason", header: "Reason", width: 140, hide: "sm", cell: (one) => <span title={one.reason}>{one.reason.replaceAll("_", " ")}</span> },
    { id: "error", header: "Error", hide: "sm", cell: (one) => <span title={one.error}>{one.error}</span> },
  ];
}

export function QueuedLetters({ kind }: { kind: QueuedKind }) {
  const url = useUrl();
  const may = useMay("operator");
  const subject = url.one("subject");
  const selection = useSelection();
  const held = updating.use() === "held";
  const found = useQuery({
    queryKey: ["dead_letters", kind, subject],
    queryFn: ({ signal }) => queued(kind, subject, signal),
    refetchInterval: held ? false : EVERY_MS,
  });
  useEffect(() => selection.clear(), [subject]); // only rows of the current list stay chosen
  const rows = found.data?.items;
  const open = url.one("letter");
  const labels = LABELS[kind];
  return (
    <>
      <div className={classes.bar}>
        <Filters names={["subject"]}>
          <TextFilter name="subject" label={labels.subject} placeholder="exact" width={labels.subjectWidth} first />
        </Filters>
        <RequeueQueued kind={kind} chosen={(rows ?? []).filter((one) => selection.has(one.key))} all={subject === "" ? (found.data?.count ?? 0) : 0} onDone={selection.clear} />
      </div>
      <DataTable
        label={`Dead letters, ${labels.many}, the oldest first`}
        columns={columns(kind)}
        pages={{ rows, error: found.error, again: () => void found.refetch() }}
        rowKey={(one) => one.key}
        rowName={(one) => `${labels.one} ${one.key}`}
        onOpen={(one) => url.set({ letter: one.key }, true)}
        openKey={open}
        {...(may ? { selection } : {})}
        empty={<Empty kind={kind} subject={subject} all={found.data?.count ?? 0} />}
      />
      {rows !== undefined && rows.length > 0 && rows.length < (found.data?.count ?? 0) && (
        <p className={classes.note} role="status">
          {subject === "" ? `The oldest ${count(rows.length)} of ${count(found.data?.count ?? 0)} are shown.` : `At most 100 of ${subject} among the oldest 1,000 are shown; there are ${count(found.data?.count ?? 0)} dead letters in all.`}
        </p>
      )}
      <QueuedDrawer kind={kind} place={open} letter={rows?.find((one) => one.key === open)} loaded={rows !== undefined} onClose={() => url.set({ letter: null })} />
    </>
  );
}

function Empty({ kind, subject, all }: { kind: QueuedKind; subject: string; all: number }) {
  if (subject !== "" && all > 0) return <EmptyState title={`Nothing of ${subject} among the oldest 1,000`}>There are {count(all)} dead letters in all; remove the filter to see the oldest.</EmptyState>;
  if (kind === "fanout") return <EmptyState title="No entity task was given up">A task becomes a dead letter if no consumer can read or handle it, or if it is redelivered too often.</EmptyState>;
  return <EmptyState title="No report call was given up">A call becomes a dead letter if no listener can read it. Calls only speed up reports; the ledger decides. Without RabbitMQ there are none.</EmptyState>;
}
