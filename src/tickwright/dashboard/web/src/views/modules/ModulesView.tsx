/** Modules: what entities are polled for, how often, and the outcome of the last windows; admins pause and change them. */
import { Button } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, type Schemas } from "../../api/client";
import { updating } from "../../app/prefs";
import { useMay } from "../../app/session";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { Glyph } from "../../parts/Glyph";
import { Instant } from "../../parts/Instant";
import { StateBadge } from "../../parts/StateBadge";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { Matrix } from "./Matrix";
import { ModuleDrawer } from "./ModuleDrawer";
import { ModuleForm } from "./ModuleForm";

type Module = Schemas["ModuleView"];
const COLUMNS: Column<Module>[] = [
  { id: "name", header: "Module", cell: (one) => one.name },
  { id: "state", header: "State", width: 110, cell: (one) => <StateBadge state={one.paused_at === null ? "enabled" : "paused"} /> },
  { id: "every", header: "Window", width: 90, align: "right", cell: (one) => one.every },
  { id: "timeout", header: "Timeout", width: 90, align: "right", hide: "sm", cell: (one) => one.timeout },
  { id: "gated", header: "Gate", width: 250, hide: "md", cell: (one) => (one.gated ? `ENABLE_${one.name}_POLLING` : "none") },
  { id: "set", header: "Set by", width: 100, hide: "sm", cell: (one) => one.set_by },
  { id: "changed", header: "Changed", width: 140, hide: "md", cell: (one) => <Instant at={one.updated_at} ago /> },
];

export default function ModulesView() {
  const url = useUrl();
  const isAdmin = useMay("admin");
  const held = updating.use() === "held";
  const [creating, setCreating] = useState(false);
  const found = useQuery({ queryKey: ["fanout", "modules"], queryFn: ({ signal }) => get("/v1/modules", { signal }), refetchInterval: held ? false : 10_000 });
  return (
    <View
      title="Modules"
      actions={
        isAdmin && (
          <Button leftSection={<Glyph name="plus" size={12} />} onClick={() => setCreating(true)}>
            Create
          </Button>
        )
      }
    >
      <Matrix hours={24} />
      <DataTable
        label="Modules by name"
        columns={COLUMNS}
        pages={{ rows: found.data?.items, error: found.error, again: () => void found.refetch() }}
        rowKey={(one) => one.name}
        onOpen={(one) => url.set({ module: one.name }, true)}
        openKey={url.one("module")}
        empty={<EmptyState title="There is no module">Define one in a program with @app.module, in [modules.NAME], here, or with tickwright modules put.</EmptyState>}
      />
      <ModuleDrawer name={url.one("module")} onClose={() => url.set({ module: null })} />
      {creating && <ModuleForm onClose={() => setCreating(false)} />}
    </View>
  );
}
