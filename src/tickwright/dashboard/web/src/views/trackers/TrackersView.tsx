/** Trackers by external id, account, partner and state; the drawer explains the state of one. */
import { get, type Schemas } from "../../api/client";
import { usePartnerNames } from "../partners/names";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { ChoiceFilter, Filters, TextFilter } from "../../parts/Filters";
import { Instant } from "../../parts/Instant";
import { StateBadge } from "../../parts/StateBadge";
import { usePages } from "../../parts/usePages";
import { useUrl, type Url } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { TrackerDrawer } from "./TrackerDrawer";

type Tracker = Schemas["TrackerView"];
const NAMES = ["external", "account", "partner", "state", "status"] as const;
const STATES = ["waiting", "placed", "ended"] as const;

const COLUMNS: Column<Tracker>[] = [
  { id: "id", header: "Id", width: 110, hide: "sm", cell: (one) => one.id },
  { id: "external", header: "External id", cell: (one) => <span title={one.external_id}>{one.external_id}</span> },
  { id: "account", header: "Account", width: 150, hide: "sm", cell: (one) => <span title={one.account_id}>{one.account_id}</span> },
  { id: "partner", header: "Partner", width: 110, hide: "md", cell: (one) => one.partner },
  { id: "state", header: "State", width: 100, cell: (one) => <StateBadge state={one.state} tone={TONES[one.state] ?? "idle"} /> },
  { id: "status", header: "Status", width: 130, cell: (one) => <span title={one.status}>{one.status}</span> },
  { id: "polled", header: "Last polled", width: 130, hide: "md", cell: (one) => <Instant at={one.last_polled_at} ago /> },
  { id: "next", header: "Next poll", width: 130, hide: "sm", cell: (one) => <Instant at={one.next_poll_at} ago /> },
];
const TONES: Record<string, "good" | "busy" | "idle"> = { placed: "good", waiting: "busy", ended: "idle" };

function filterOf(url: Url) {
  return {
    external_id: url.one("external") || undefined,
    account_id: url.one("account") || undefined,
    partner: url.one("partner") || undefined,
    state: STATES.find((one) => one === url.one("state")),
    status: url.one("status") || undefined,
  };
}

export default function TrackersView() {
  const url = useUrl();
  const filter = filterOf(url);
  const partners = usePartnerNames();
  const filtered = NAMES.some((name) => url.one(name) !== "");
  const pages = usePages({
    queryKey: ["trackers", filter],
    load: (cursor, signal) => get("/v1/trackers", { query: { ...filter, cursor, limit: 100 }, signal }),
    every: 10_000,
  });
  return (
    <View title="Trackers">
      <Filters names={NAMES}>
        <TextFilter name="external" label="External id" placeholder="begins with" first />
        <TextFilter name="account" label="Account" placeholder="exact" />
        <ChoiceFilter name="partner" label="Partner" names options={partners} />
        <ChoiceFilter name="state" label="State" options={STATES} width={130} />
        <TextFilter name="status" label="Status" placeholder="exact" width={140} />
      </Filters>
      <DataTable
        label={filter.external_id === undefined ? "Trackers, newest first" : "Trackers by external id"}
        columns={COLUMNS}
        pages={pages}
        rowKey={(one) => one.id}
        onOpen={(one) => url.set({ tracker: one.id }, true)}
        openKey={url.one("tracker")}
        empty={
          pages.hasMore ? (
            <EmptyState title="No tracker matches so far">One request searches at most 20,000 trackers; the next one is being sent.</EmptyState>
          ) : filtered ? (
            <EmptyState title="No tracker matches">Remove a filter. The filter External id compares the beginning, with upper and lower case.</EmptyState>
          ) : (
            <EmptyState title="There is no tracker">Register one with SQL, REST (POST /v1/trackers) or the command line.</EmptyState>
          )
        }
      />
      <TrackerDrawer id={url.one("tracker")} onClose={() => url.set({ tracker: null })} />
    </View>
  );
}
