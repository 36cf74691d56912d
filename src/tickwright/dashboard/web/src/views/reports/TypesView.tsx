/** Report types and their listeners; admins create, change and delete them. */
import { Button } from "@mantine/core";
import { useState } from "react";
import { get, type Schemas } from "../../api/client";
import { useMay } from "../../app/session";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { Glyph } from "../../parts/Glyph";
import { Instant } from "../../parts/Instant";
import { usePages } from "../../parts/usePages";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { TypeDrawer } from "./TypeDrawer";
import { TypeForm } from "./TypeForm";

type ReportType = Schemas["ReportTypeView"];
const COLUMNS: Column<ReportType>[] = [
  { id: "name", header: "Report type", width: 220, cell: (one) => <span title={one.name}>{one.name}</span> },
  { id: "listeners", header: "Listeners", cell: (one) => <span title={one.listeners.join(", ")}>{one.listeners.join(", ")}</span> },
  { id: "stages", header: "Stages", width: 80, align: "right", hide: "sm", cell: (one) => one.stages },
  { id: "format", header: "Format", width: 90, hide: "sm", cell: (one) => one.format },
  { id: "set", header: "Set by", width: 100, hide: "md", cell: (one) => one.set_by },
  { id: "changed", header: "Changed", width: 150, hide: "md", cell: (one) => <Instant at={one.updated_at} ago /> },
];

export default function TypesView() {
  const url = useUrl();
  const isAdmin = useMay("admin");
  const [creating, setCreating] = useState(false);
  const pages = usePages({ queryKey: ["report-types", "list"], load: (cursor, signal) => get("/v1/report-types", { query: { cursor, limit: 100 }, signal }), every: 10_000 });
  return (
    <View
      title="Report types"
      actions={
        isAdmin && (
          <Button leftSection={<Glyph name="plus" size={12} />} onClick={() => setCreating(true)}>
            Create
          </Button>
        )
      }
    >
      <DataTable
        label="Report types by name"
        columns={COLUMNS}
        pages={pages}
        rowKey={(one) => one.name}
        onOpen={(one) => url.set({ type: one.name }, true)}
        openKey={url.one("type")}
        empty={<EmptyState title="There is no report type">Define one in a program with @app.report, in [report_types.NAME], here, or with tickwright report-types put.</EmptyState>}
      />
      <TypeDrawer name={url.one("type")} onClose={() => url.set({ type: null })} />
      {creating && <TypeForm onClose={() => setCreating(false)} />}
    </View>
  );
}
