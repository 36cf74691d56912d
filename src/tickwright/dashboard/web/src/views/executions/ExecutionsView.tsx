/** Executions of campaigns and batches, newest first: progress and outcome. */
import { get } from "../../api/client";
import { DataTable } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { ChoiceFilter, Filters, TextFilter } from "../../parts/Filters";
import { usePages } from "../../parts/usePages";
import { useUrl, type Url } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { EXECUTION_COLUMNS, STATUSES } from "./columns";
import { ExecutionDrawer } from "./ExecutionDrawer";

const NAMES = ["name", "kind", "status"] as const;
const KINDS = ["campaign", "program"] as const;

function filterOf(url: Url) {
  const kind = KINDS.find((one) => one === url.one("kind"));
  const name = url.one("name") || undefined;
  const status = STATUSES.find((one) => one === url.one("status"));
  const of = kind === "program" ? { batch: name } : { campaign: name };
  return { ...(name === undefined ? { kind } : of), status: status === undefined ? undefined : [status] };
}

export default function ExecutionsView() {
  const url = useUrl();
  const filter = filterOf(url);
  const filtered = NAMES.some((name) => url.one(name) !== "");
  const pages = usePages({
    queryKey: ["executions", "list", filter],
    load: (cursor, signal) => get("/v1/executions", { query: { ...filter, cursor, limit: 100 }, signal }),
    every: 3_000,
  });
  return (
    <View title="Executions">
      <Filters names={NAMES}>
        <TextFilter name="name" label="Campaign or batch" placeholder="the whole name" width={220} first />
        <ChoiceFilter
          name="kind"
          label="Kind"
          all="Campaigns and batches"
          options={[
            { value: "campaign", label: "campaigns" },
            { value: "program", label: "batches of programs" },
          ]}
          width={190}
        />
        <ChoiceFilter name="status" label="Status" options={STATUSES.map((value) => ({ value, label: value.toLowerCase().replaceAll("_", " ") }))} width={190} />
      </Filters>
      <DataTable
        label="Executions, newest first"
        columns={EXECUTION_COLUMNS}
        pages={pages}
        rowKey={(one) => one.id}
        onOpen={(one) => url.set({ execution: one.id }, true)}
        openKey={url.one("execution")}
        empty={
          pages.hasMore ? (
            <EmptyState title="No execution matches so far">One request searches at most 5,000 executions; the next one is being sent.</EmptyState>
          ) : filtered ? (
            <EmptyState title="No execution matches">Remove a filter. A name without a kind finds campaigns only.</EmptyState>
          ) : (
            <EmptyState title="There is no execution">Start a campaign by hand, or activate one that has a calendar.</EmptyState>
          )
        }
      />
      <ExecutionDrawer id={url.one("execution")} onClose={() => url.set({ execution: null, client: null })} />
    </View>
  );
}
