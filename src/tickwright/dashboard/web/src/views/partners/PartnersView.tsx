/** Partners: whether each is called, else why and until when; and how much of its quota is used. */
import { useQueries, useQuery, type UseQueryResult } from "@tanstack/react-query";
import { get, type Schemas } from "../../api/client";
import { updating } from "../../app/prefs";
import { useMay } from "../../app/session";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { count, percent, rate } from "../../parts/Figure";
import { ChoiceFilter, Filters, TextFilter } from "../../parts/Filters";
import { Instant } from "../../parts/Instant";
import { StateBadge } from "../../parts/StateBadge";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { NewPartner } from "./PartnerEdit";
import { PartnerDrawer } from "./PartnerDrawer";
import { QuotaBar } from "./QuotaBar";
import { stateOf } from "./state";

type Partner = Schemas["PartnerView"];
type Figures = Schemas["PartnerFigures"];
interface Row {
  partner: Partner;
  figures: Figures | undefined;
}

/** Figures are fetched for so many partners; the drawer fetches those of any other. */
const FIGURES_MAX = 50;
/** The first request has no calls yet, so the second one follows soon. */
const FIRST_MS = 2_000;

const COLUMNS: Column<Row>[] = [
  { id: "name", header: "Partner", width: 170, cell: ({ partner }) => <span title={partner.name}>{partner.name}</span> },
  { id: "state", header: "State", width: 140, cell: ({ partner, figures }) => <StateBadge {...stateOf(partner, figures)} /> },
  { id: "until", header: "Until", width: 110, hide: "sm", cell: ({ figures }) => <Instant at={figures?.state_until} ago /> },
  { id: "quota", header: "Quota used", cell: ({ figures }) => figures && <QuotaBar name={figures.name} quota={figures.quota} /> },
  { id: "throttled", header: "429 share", width: 96, align: "right", hide: "sm", cell: ({ figures }) => share(figures, "throttled_share") },
  { id: "failed", header: "Errors", width: 80, align: "right", hide: "md", cell: ({ figures }) => share(figures, "failed_share") },
  { id: "waiting", header: "Waiting polls", width: 110, align: "right", hide: "md", cell: ({ figures }) => figures && `${count(figures.waiting.polls)}${figures.waiting.capped ? "+" : ""}` },
  { id: "called", header: "Called by", width: 100, hide: "md", cell: ({ partner }) => partner.called_by ?? "none" },
  { id: "rate", header: "Calls/s", width: 80, align: "right", hide: "sm", cell: ({ figures }) => (figures?.quota.calls_per_s == null ? "–" : rate(figures.quota.calls_per_s)) },
];

/** Calls are counted between two requests: the first one starts the count. */
function share(figures: Figures | undefined, name: "throttled_share" | "failed_share") {
  if (figures?.calls === null) return <span title="Calls are counted between two requests; this was the first for five minutes">counting</span>;
  const value = figures?.calls?.[name];
  return value == null ? "–" : percent(value);
}

function useFigures(names: readonly string[], held: boolean) {
  return useQueries({
    queries: names.slice(0, FIGURES_MAX).map((name) => ({
      queryKey: ["partners", "figures", name],
      queryFn: ({ signal }: { signal: AbortSignal }) => get("/v1/partners/{name}/figures", { path: { name }, signal }),
      refetchInterval: ({ state }: { state: { data: Figures | undefined } }) => (held ? (false as const) : state.data?.calls === null ? FIRST_MS : 5_000),
    })),
    combine: (found: UseQueryResult<Figures>[]) => new Map(found.flatMap(({ data }) => (data === undefined ? [] : [[data.name, data] as const]))),
  });
}

export default function PartnersView() {
  const url = useUrl();
  const held = updating.use() === "held";
  const mayEdit = useMay("admin");
  const found = useQuery({
    queryKey: ["partners", "all"],
    queryFn: ({ signal }) => get("/v1/partners", { signal }),
    refetchInterval: held ? false : 5_000,
  });
  const all = found.data?.items;
  const named = all?.filter((partner) => partner.name.toLowerCase().includes(url.one("text").toLowerCase()));
  const figures = useFigures((named ?? []).map((partner) => partner.name), held);
  const rows = named?.map((partner) => ({ partner, figures: figures.get(partner.name) })).filter((row) => url.one("state") === "" || isIn(url.one("state"), row));
  return (
    <View title="Partners" actions={mayEdit && <NewPartner />}>
      <Filters names={["text", "state"]}>
        <TextFilter name="text" label="Partner" placeholder="part of its name" first />
        <ChoiceFilter name="state" label="State" options={["called", "not called"]} />
      </Filters>
      <DataTable
        label="Partners by name"
        columns={COLUMNS}
        pages={{ rows, error: found.error, again: () => void found.refetch() }}
        rowKey={(row) => row.partner.name}
        onOpen={(row) => url.set({ partner: row.partner.name }, true)}
        openKey={url.one("partner")}
        empty={
          all?.length === 0 ? (
            <EmptyState title="There is no partner">A partner is the service at which trackers are polled. Create one here, with <code>tickwright partners put</code>, or in the TOML file.</EmptyState>
          ) : (
            <EmptyState title="No partner matches">Remove a filter.</EmptyState>
          )
        }
      />
      <PartnerDrawer name={url.one("partner")} onClose={() => url.set({ partner: null })} />
    </View>
  );
}

function isIn(wanted: string, row: Row): boolean {
  return (stateOf(row.partner, row.figures).state === "called") === (wanted === "called");
}
