/** Alerts: those that fire and since when, and those that are resolved. */
import { SegmentedControl } from "@mantine/core";
import { get, type Schemas } from "../../api/client";
import { useOverview } from "../../app/live";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { count } from "../../parts/Figure";
import { Instant } from "../../parts/Instant";
import { StateBadge, type Tone } from "../../parts/StateBadge";
import { usePages } from "../../parts/usePages";
import { CheckedParameter } from "../../parts/ParameterChecks";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { AlertDrawer } from "./AlertDrawer";

type Alert = Schemas["AlertView"];
const TONES: Record<string, Tone> = { critical: "bad", warning: "warn", info: "busy" };

const COLUMNS: Column<Alert>[] = [
  { id: "severity", header: "Severity", width: 96, cell: (one) => <StateBadge state={one.severity} tone={TONES[one.severity] ?? "idle"} /> },
  { id: "state", header: "State", width: 96, hide: "sm", cell: (one) => <StateBadge state={one.state} /> },
  { id: "rule", header: "Rule", width: 180, cell: (one) => <span title={one.rule}>{one.rule}</span> },
  { id: "subject", header: "Subject", width: 150, hide: "md", cell: (one) => <span title={one.subject}>{one.subject}</span> },
  { id: "summary", header: "Summary", hide: "sm", cell: (one) => <span title={one.summary}>{one.summary}</span> },
  { id: "fired", header: "Fired", width: 130, cell: (one) => <Instant at={one.fired_at} ago /> },
  { id: "who", header: "Acknowledged by", width: 130, hide: "sm", cell: (one) => <span title={one.acknowledged_note ?? ""}>{one.acknowledged_by}</span> },
  { id: "resolved", header: "Resolved", width: 130, hide: "md", cell: (one) => <Instant at={one.resolved_at} ago /> },
];
const STATES = ["resolved", "all"] as const;

export default function AlertsView() {
  const url = useUrl();
  const chosen = url.one("state");
  const state = chosen === "all" ? undefined : chosen === "resolved" ? "resolved" : "firing";
  const firing = useOverview((overview) => overview.alerts.critical + overview.alerts.warning + overview.alerts.info);
  const pages = usePages({
    queryKey: ["alerts", state],
    load: (cursor, signal) => get("/v1/alerts", { query: { state, cursor, limit: 100 }, signal }),
  });
  const open = pages.rows?.find((one) => one.id === url.one("alert"));
  return (
    <View title="Alerts">
      <CheckedParameter name="state" label="State" possible={STATES} />
      <SegmentedControl
        aria-label="State"
        style={{ alignSelf: "flex-start" }}
        value={chosen}
        onChange={(value) => url.set({ state: value })}
        data={[
          { value: "", label: firing === null ? "Firing" : `Firing ${count(firing)}` },
          { value: "resolved", label: "Resolved" },
          { value: "all", label: "All" },
        ]}
      />
      <DataTable
        label="Alerts, newest first"
        columns={COLUMNS}
        pages={pages}
        rowKey={(one) => one.id}
        onOpen={(one) => url.set({ alert: one.id }, true)}
        openKey={url.one("alert")}
        empty={
          state === "firing" ? (
            <EmptyState title="No alert fires">The process that holds the lease “alerting” evaluates the rules every few seconds.</EmptyState>
          ) : (
            <EmptyState title="There is no such alert">Alerts stay here after they are resolved.</EmptyState>
          )
        }
      />
      <AlertDrawer id={url.one("alert")} alert={open} loaded={pages.rows !== undefined} onClose={() => url.set({ alert: null })} />
    </View>
  );
}
