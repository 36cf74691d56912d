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
import { queued, WORDS, type Queued, type QueuedKind } from "./kinds";
import { QueuedDrawer } from "./QueuedDrawer";
import { RequeueQueued } from "./RequeueQueued";
import classes from "./letters.module.css";

/** To look takes the messages out of the queue for a moment, so it is not done as often as elsewhere. */
const EVERY_MS = 15_000;

function columns(kind: QueuedKind): Column<Queued>[] {
  return [
    { id: "about", header: kind === "fanout" ? "Entity" : "Report", width: 150, cell: (one) => <span title={one.about ?? ""}>{one.about ?? "unreadable"}</span> },
    { id: "subject", header: WORDS[kind].subject, width: 150, cell: (one) => <span title={one.subject ?? ""}>{one.subject}</span> },
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
  useEffect(() => selection.clear(), [subject]); // what is chosen is what is seen
  const rows = found.data?.items;
  const open = url.one("letter");
  const words = WORDS[kind];
  return (
    <>
      <div className={classes.bar}>
        <Filters names={["subject"]}>
          <TextFilter name="subject" label={words.subject} placeholder="exact" width={words.subjectWidth} first />
        </Filters>
        <RequeueQueued kind={kind} chosen={(rows ?? []).filter((one) => selection.has(one.key))} all={subject === "" ? (found.data?.count ?? 0) : 0} onDone={selection.clear} />
      </div>
      <DataTable
        label={`Dead letters, ${words.many}, the oldest first`}
        columns={columns(kind)}
        pages={{ rows, error: found.error, again: () => void found.refetch() }}
        rowKey={(one) => one.key}
        rowName={(one) => `${words.one} ${one.key}`}
        onOpen={(one) => url.set({ letter: one.key }, true)}
        openKey={open}
        {...(may ? { selection } : {})}
        empty={<Nothing kind={kind} subject={subject} all={found.data?.count ?? 0} />}
      />
      {rows !== undefined && rows.length > 0 && rows.length < (found.data?.count ?? 0) && (
        <p className={classes.note} role="status">
          {subject === "" ? `The oldest ${count(rows.length)} of ${count(found.data?.count ?? 0)} are shown.` : `Those of ${subject} among the oldest 1,000 are shown, at most 100; there are ${count(found.data?.count ?? 0)} in all.`}
        </p>
      )}
      <QueuedDrawer kind={kind} place={open} letter={rows?.find((one) => one.key === open)} asked={rows !== undefined} onClose={() => url.set({ letter: null })} />
    </>
  );
}

function Nothing({ kind, subject, all }: { kind: QueuedKind; subject: string; all: number }) {
  if (subject !== "" && all > 0) return <EmptyState title={`Nothing of ${subject} among the oldest 1,000`}>There are {count(all)} in all; leave out the filter to see the oldest.</EmptyState>;
  if (kind === "fanout") return <EmptyState title="No entity task was given up">A task comes here that no consumer can read or handle, or that is delivered again and again without an end.</EmptyState>;
  return <EmptyState title="No report call was given up">A call only says sooner what the ledger says; one that no listener can read comes here. Without RabbitMQ there are no calls.</EmptyState>;
}
