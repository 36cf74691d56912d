/** Dead letters in the database, the newest first: failed jobs, and messages that could not be delivered. */
import { Button } from "@mantine/core";
import { useEffect } from "react";
import { Link, useLocation } from "wouter";
import { get, post, type Schemas } from "../../api/client";
import { useMay } from "../../app/session";
import { useConfirm } from "../../parts/Confirm";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { count } from "../../parts/Figure";
import { Filters, TextFilter } from "../../parts/Filters";
import { Instant } from "../../parts/Instant";
import { useAction } from "../../parts/useAction";
import { usePages } from "../../parts/usePages";
import { useSelection } from "../../parts/useSelection";
import { useUrl } from "../../parts/useUrl";
import { LABELS, type StoredKind } from "./kinds";
import classes from "./letters.module.css";

type Letter = Schemas["DeadLetter"];
type Kind = StoredKind;
type Which = { kind: Kind; ids: string[] } | { kind: Kind; subject: string; number: Matches };
/** How many match; with `more` it is a lower bound. */
interface Matches {
  requeued: number;
  more: boolean;
}

const CALLS_MAX = 1000;
const IDS_MAX = 1000;
const COLUMNS: Column<Letter>[] = [
  { id: "id", header: "Id", width: 110, cell: (one) => one.id },
  { id: "subject", header: "Task type or destination", width: 260, cell: (one) => <span title={one.subject}>{one.subject}</span> },
  { id: "died", header: "Given up", width: 130, cell: (one) => <Instant at={one.died_at} ago /> },
  { id: "attempts", header: "Attempts", width: 88, align: "right", hide: "sm", cell: (one) => one.attempts },
  { id: "error", header: "Error", hide: "sm", cell: (one) => <span title={one.error_message ?? ""}>{one.error_message}</span> },
];

/** Requeue a thousand a call; return how many were requeued. What becomes a dead letter again meanwhile is not requeued twice. */
async function requeue(which: Which): Promise<number> {
  if ("ids" in which) {
    let done = 0;
    for (let start = 0; start < which.ids.length; start += IDS_MAX) {
      const body = { kind: which.kind, ids: which.ids.slice(start, start + IDS_MAX) };
      done += (await post("/v1/dead-letters/requeue", { body })).requeued;
    }
    return done;
  }
  const { kind, subject, number } = which;
  let [done, cursor] = [0, null as string | null];
  for (let calls = 0; calls < CALLS_MAX && (number.more || done < number.requeued); calls += 1) {
    const limit = number.more ? IDS_MAX : Math.min(IDS_MAX, number.requeued - done);
    const answer = await post("/v1/dead-letters/requeue", { body: { kind, subject, limit, ...(cursor === null ? {} : { cursor }) } });
    done += answer.requeued;
    cursor = answer.next;
    if (cursor === null) break;
  }
  return done;
}

export function StoredLetters({ kind }: { kind: Kind }) {
  const url = useUrl();
  const [, go] = useLocation();
  const subject = url.one("subject");
  const selection = useSelection();
  const pages = usePages({
    queryKey: ["dead_letters", kind, subject],
    load: (cursor, signal) => get("/v1/dead-letters", { query: { kind, subject, cursor, limit: 100 }, signal }),
  });
  useEffect(() => selection.clear(), [subject]); // only rows of the current list stay chosen
  const empty = `No ${LABELS[kind].one}${subject === "" ? "" : ` of ${subject}`} was given up`;
  return (
    <>
      <div className={classes.bar}>
        <Filters names={["subject"]}>
          <TextFilter name="subject" label={LABELS[kind].subject} placeholder="exact" width={LABELS[kind].subjectWidth} first />
        </Filters>
        {kind === "job" && <Link href={`/jobs?${new URLSearchParams({ state: "failed", ...(subject === "" ? {} : { type: subject }) })}`}>Filter by error text</Link>}
        <Requeue kind={kind} subject={subject} ids={selection.ids} onDone={selection.clear} />
      </div>
      <DataTable
        label={`Dead letters, ${LABELS[kind].many}, the newest first`}
        columns={COLUMNS}
        pages={pages}
        rowKey={(one) => one.id}
        rowName={(one) => `${one.kind} ${one.id}`}
        {...(kind === "job" ? { onOpen: (one: Letter) => go(`/jobs?job=${one.id}`) } : {})}
        selection={selection}
        empty={<EmptyState title={empty}>A job becomes a dead letter after its last attempt, a message if its destination refuses it permanently.</EmptyState>}
      />
    </>
  );
}

interface Props {
  kind: Kind;
  subject: string;
  ids: readonly string[];
  onDone: () => void;
}

function Requeue({ kind, subject, ids, onDone }: Props) {
  const may = useMay("operator");
  const confirm = useConfirm();
  const named = (number: number) => `${count(number)} ${number === 1 ? LABELS[kind].one : LABELS[kind].many}`;
  const action = useAction({ run: requeue, message: (done) => `${named(done)} requeued`, invalidates: ["dead_letters", "jobs"] });
  const dryRun = useAction({ run: () => post("/v1/dead-letters/requeue", { body: { kind, subject, dry_run: true } }), message: () => null, invalidates: [] });
  if (!may) return null;
  async function ask(): Promise<void> {
    const number: Matches = ids.length > 0 ? { requeued: ids.length, more: false } : await dryRun.mutateAsync(undefined);
    const does = `Requeue ${named(number.requeued)}${number.more ? " or more" : ""}`;
    const none = number.requeued === 0 && !number.more ? `No dead letter of ${subject} is left. ` : "";
    const text = `${none}They are due now and keep their ids and attempts. The oldest go first.`;
    const which: Which = ids.length > 0 ? { kind, ids: [...ids] } : { kind, subject, number };
    if (await confirm({ title: `${does}${ids.length > 0 ? "" : ` of ${subject}`}?`, text, does })) action.mutate(which, { onSuccess: onDone });
  }
  const label = ids.length > 0 ? `Requeue ${named(ids.length)}` : subject === "" ? "Requeue" : `Requeue all ${LABELS[kind].many} of ${subject}`;
  return (
    <Button
      disabled={ids.length === 0 && subject === ""}
      loading={action.isPending || dryRun.isPending}
      onClick={() => void ask().catch(() => undefined)}
      title="Choose dead letters, or filter by a task type or destination"
    >
      {label}
    </Button>
  );
}
