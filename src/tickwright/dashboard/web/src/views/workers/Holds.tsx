/** What a session holds: jobs, leases, chunks, parts, polls; each with its fence. */
import { Link } from "wouter";
import type { Schemas } from "../../api/client";
import { DataTable, type Column } from "../../parts/DataTable";
import { count } from "../../parts/Figure";
import { Instant } from "../../parts/Instant";
import classes from "./workers.module.css";

type Holding = Schemas["Holding"];

/** The view that shows a holding, by kind; below, the unit of its count. */
const PLACES: Record<string, (one: Holding) => string | null> = {
  job: (one) => `/jobs?job=${one.id}`,
  lease: (one) => `/leases?text=${encodeURIComponent(one.name ?? "")}`,
  execution: (one) => `/executions?execution=${one.id}`,
  chunk: (one) => `/executions?execution=${one.id}`,
  report: (one) => `/reports?report=${one.id}`,
  part: (one) => `/reports?report=${one.id}`,
  polls: (one) => `/partners?partner=${encodeURIComponent(one.name ?? "")}`,
};
const COUNTS: Record<string, string> = { job: "attempt", chunk: "members", part: "rows", polls: "polls" };

const COLUMNS: Column<Holding>[] = [
  { id: "kind", header: "Kind", width: 90, cell: (one) => one.kind },
  { id: "what", header: "Item", cell: (one) => <What holding={one} /> },
  { id: "count", header: "Count", width: 120, align: "right", hide: "sm", cell: (one) => (one.count === null ? "–" : `${COUNTS[one.kind] ?? ""} ${count(one.count)}`) },
  { id: "fence", header: "Fence", width: 80, align: "right", cell: (one) => one.fence ?? "–" },
  { id: "since", header: "Since", width: 120, cell: (one) => <Instant at={one.since_at} ago /> },
];

function What({ holding }: { holding: Holding }) {
  const text = [holding.name, holding.id, holding.number === null ? null : `number ${holding.number}`].filter((part) => part !== null).join(" · ");
  const to = PLACES[holding.kind]?.(holding) ?? null;
  return to === null ? <span title={text}>{text}</span> : <Link href={to}>{text}</Link>;
}

export function Holds({ worker }: { worker: Schemas["WorkerDetail"] }) {
  if (worker.holds.length === 0) return <p className={classes.quiet}>{worker.alive ? "Nothing now." : "Nothing: it has ended."}</p>;
  return (
    <>
      <DataTable label="What it holds" columns={COLUMNS} pages={{ rows: worker.holds, error: null }} rowKey={keyOf} empty={null} grows />
      {worker.more.length > 0 && <p className={classes.quiet}>The first 100 of each kind are shown; it holds more of: {worker.more.join(", ")}.</p>}
    </>
  );
}

const keyOf = (one: Holding) => [one.kind, one.id, one.name, one.number].join("/");
