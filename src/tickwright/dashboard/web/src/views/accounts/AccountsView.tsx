/** Accounts, the worst lag first, and the drawer of the account that the URL names. */
import { get, type Schemas } from "../../api/client";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { count, percent } from "../../parts/Figure";
import { ChoiceFilter, Filters, TextFilter } from "../../parts/Filters";
import { Instant } from "../../parts/Instant";
import { StateBadge } from "../../parts/StateBadge";
import { usePages } from "../../parts/usePages";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { AccountDrawer } from "./AccountDrawer";
import { Budget, BurnRate, exact, Interval, Lag, stateOf } from "./figures";

type Account = Schemas["AccountLine"];

const COLUMNS: Column<Account>[] = [
  { id: "account", header: "Account", cell: (one) => <span title={one.account_id}>{one.account_id}</span> },
  { id: "state", header: "State", width: 106, cell: (one) => <StateBadge {...stateOf(one)} /> },
  { id: "lag", header: "Lag, in intervals", width: 150, hide: "sm", cell: (one) => <Lag account={one} /> },
  { id: "fresh", header: "Fresh, of objective", width: 160, align: "right", hide: "md", cell: (one) => <Share account={one} /> },
  { id: "budget", header: "Budget left", width: 150, cell: (one) => <Budget account={one} /> },
  { id: "burn", header: "Burn, 1 h", width: 84, align: "right", hide: "sm", cell: (one) => <BurnRate rate={one.burn_rate} /> },
  { id: "stale", header: "Stale since", width: 130, hide: "md", cell: (one) => <Instant at={one.stale_since} ago /> },
  { id: "interval", header: "Interval", width: 120, align: "right", hide: "sm", cell: (one) => <Interval account={one} /> },
  { id: "cap", header: "Cap per 5 min", width: 110, align: "right", hide: "md", cell: (one) => (one.polls_per_slice_max === null ? "none" : count(one.polls_per_slice_max)) },
];

/** The fresh share of the last interval, and the objective. */
function Share({ account }: { account: Account }) {
  const share = account.recent_share === null ? "–" : percent(account.recent_share);
  return `${share} of ${exact(account.freshness_objective)}`;
}

export default function AccountsView() {
  const url = useUrl();
  const text = url.one("text");
  const sort = url.one("sort") === "id" ? "id" : "lag";
  const pages = usePages({
    queryKey: ["accounts", sort, text],
    load: (cursor, signal) => get("/v1/accounts", { query: { sort, text: text || null, cursor, limit: 100 }, signal }),
  });
  return (
    <View title="Accounts">
      <Filters names={["text", "sort"]}>
        <TextFilter name="text" label="Account" placeholder="part of its id" first />
        <ChoiceFilter name="sort" label="Order" all="Worst lag first" options={[{ value: "id", label: "By id" }]} />
      </Filters>
      <DataTable
        label={sort === "lag" ? "Accounts, the worst lag first" : "Accounts by id"}
        columns={COLUMNS}
        pages={pages}
        rowKey={(one) => one.account_id}
        onOpen={(one) => url.set({ account: one.account_id }, true)}
        openKey={url.one("account")}
        empty={
          text === "" ? (
            <EmptyState title="There is no account">An account appears with its first tracker: register one with SQL, REST or the command line.</EmptyState>
          ) : (
            <EmptyState title={`No account has “${text}” in its id`}>Remove the filter to see all accounts.</EmptyState>
          )
        }
      />
      <AccountDrawer id={url.one("account")} onClose={() => url.set({ account: null })} />
    </View>
  );
}
