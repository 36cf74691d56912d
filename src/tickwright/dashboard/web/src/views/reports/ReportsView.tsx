/** Reports, newest first, with their progress and files. */
import { Button } from "@mantine/core";
import { useState } from "react";
import { get, type Schemas } from "../../api/client";
import { useMay } from "../../app/session";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { bytes, count } from "../../parts/Figure";
import { ChoiceFilter, Filters, TextFilter } from "../../parts/Filters";
import { Glyph } from "../../parts/Glyph";
import { Instant } from "../../parts/Instant";
import { StateBadge } from "../../parts/StateBadge";
import { usePages } from "../../parts/usePages";
import { useUrl, type Url } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { Download } from "./Download";
import { useTypeNames } from "./names";
import { ReportDrawer } from "./ReportDrawer";
import { RequestForm } from "./RequestForm";

type Report = Schemas["ReportView"];
const NAMES = ["requester", "type", "status", "department"] as const;
const STATUSES = ["pending", "querying", "merging", "finished", "failed", "cancelled"] as const;

const COLUMNS: Column<Report>[] = [
  { id: "id", header: "Id", width: 84, cell: (one) => one.id },
  { id: "type", header: "Type", cell: (one) => <span title={one.type}>{one.type}</span> },
  { id: "status", header: "Status", width: 110, cell: (one) => <StateBadge state={one.status} /> },
  { id: "parts", header: "Parts", width: 72, align: "right", hide: "sm", cell: (one) => `${one.parts_done}/${one.parts_expected}` },
  { id: "requester", header: "Requester", width: 140, hide: "sm", cell: (one) => <span title={one.requester}>{one.requester}</span> },
  { id: "created", header: "Requested", width: 130, hide: "sm", cell: (one) => <Instant at={one.created_at} ago /> },
  { id: "rows", header: "Rows", width: 84, align: "right", hide: "md", cell: (one) => (one.rows === null ? "–" : count(one.rows)) },
  { id: "bytes", header: "Size", width: 84, align: "right", hide: "md", cell: (one) => (one.bytes === null ? "–" : bytes(one.bytes)) },
  { id: "format", header: "Format", width: 76, hide: "md", cell: (one) => one.format },
  { id: "file", header: "File", width: 104, keep: true, cell: (one) => <Download report={one} small /> },
];

function filterOf(url: Url) {
  const status = STATUSES.find((one) => one === url.one("status"));
  return {
    requester: url.one("requester") || undefined,
    department: url.one("department") || undefined,
    type: url.one("type") || undefined,
    status: status === undefined ? undefined : [status],
  };
}

export default function ReportsView() {
  const url = useUrl();
  const may = useMay("operator");
  const types = useTypeNames();
  const [requesting, setRequesting] = useState(false);
  const filter = filterOf(url);
  const filtered = NAMES.some((name) => url.one(name) !== "");
  const pages = usePages({ queryKey: ["reports", "list", filter], load: (cursor, signal) => get("/v1/reports", { query: { ...filter, cursor, limit: 100 }, signal }), every: 3_000 });
  return (
    <View
      title="Reports"
      actions={
        may && (
          <Button leftSection={<Glyph name="plus" size={12} />} onClick={() => setRequesting(true)}>
            Request
          </Button>
        )
      }
    >
      <Filters names={NAMES}>
        <TextFilter name="requester" label="Requester" placeholder="exact" first />
        <ChoiceFilter name="type" label="Type" names options={types} width={180} />
        <ChoiceFilter name="status" label="Status" options={STATUSES} width={140} />
        <TextFilter name="department" label="Department" placeholder="exact" width={150} />
      </Filters>
      <DataTable
        label="Reports, newest first"
        columns={COLUMNS}
        pages={pages}
        rowKey={(one) => one.id}
        onOpen={(one) => url.set({ report: one.id }, true)}
        openKey={url.one("report")}
        empty={
          pages.hasMore ? (
            <EmptyState title="No report matches so far">One request searches at most 5,000 reports; the next one is being sent.</EmptyState>
          ) : filtered ? (
            <EmptyState title="No report matches">Remove a filter.</EmptyState>
          ) : (
            <EmptyState title="No report was requested">Request one here, with POST /v1/reports, or with tickwright reports request.</EmptyState>
          )
        }
      />
      <ReportDrawer id={url.one("report")} onClose={() => url.set({ report: null })} />
      {requesting && <RequestForm onClose={() => setRequesting(false)} onMade={(id) => url.set({ report: id }, true)} />}
    </View>
  );
}
