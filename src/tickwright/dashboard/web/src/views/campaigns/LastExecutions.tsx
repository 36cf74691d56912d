/** The newest executions of one campaign or batch. */
import { useQuery } from "@tanstack/react-query";
import { Link, useLocation } from "wouter";
import { get } from "../../api/client";
import { updating } from "../../app/prefs";
import { DataTable } from "../../parts/DataTable";
import { EXECUTION_COLUMNS } from "../executions/columns";
import classes from "./campaigns.module.css";
import type { Kind } from "./kind";

export function LastExecutions({ kind, name }: { kind: Kind; name: string }) {
  const [, go] = useLocation();
  const held = updating.use() === "held";
  const query = { ...(kind === "campaigns" ? { campaign: name } : { batch: name }), limit: 5 };
  const found = useQuery({ queryKey: ["executions", "of", kind, name], queryFn: ({ signal }) => get("/v1/executions", { query, signal }), refetchInterval: held ? false : 3_000 });
  return (
    <>
      <DataTable
        label={`Last executions of ${name}`}
        grows
        columns={EXECUTION_COLUMNS.filter((column) => column.id !== "name")}
        pages={{ rows: found.data?.items, error: found.error, again: () => void found.refetch() }}
        rowKey={(one) => one.id}
        onOpen={(one) => go(`/executions?execution=${one.id}`)}
        empty={<p className={classes.none}>There is no execution yet.</p>}
      />
      {(found.data?.items.length ?? 0) > 0 && <Link href={`/executions?kind=${kind === "campaigns" ? "campaign" : "program"}&name=${encodeURIComponent(name)}`}>All executions of {name}</Link>}
    </>
  );
}
