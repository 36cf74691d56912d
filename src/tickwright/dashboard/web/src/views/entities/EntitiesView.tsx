/** Entities with the modules that they are polled for and the last success of each; above, modules against windows. */
import { Button } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, type Schemas } from "../../api/client";
import { useMay } from "../../app/session";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { ChoiceFilter, Filters, TextFilter } from "../../parts/Filters";
import { Glyph } from "../../parts/Glyph";
import { Instant } from "../../parts/Instant";
import { StateBadge } from "../../parts/StateBadge";
import { usePages } from "../../parts/usePages";
import { useUrl, type Url } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { Matrix } from "../modules/Matrix";
import classes from "../modules/modules.module.css";
import { EntityDrawer } from "./EntityDrawer";
import { EntityForm } from "./EntityForm";
import { stateOf } from "./state";

type Entity = Schemas["EntityState"];
const NAMES = ["q", "module", "enabled"] as const;

const COLUMNS: Column<Entity>[] = [
  { id: "code", header: "Entity", width: 190, cell: (one) => <span title={one.code}>{one.code}</span> },
  { id: "polled", header: "Polling", width: 100, cell: (one) => <StateBadge state={one.is_polling_enabled ? "enabled" : "paused"} /> },
  { id: "partner", header: "Partner", width: 120, hide: "md", cell: (one) => one.partner ?? "–" },
  { id: "modules", header: "Modules, with the last success of each", cell: (one) => <Modules of={one} /> },
];

function Modules({ of: one }: { of: Entity }) {
  if (one.modules.length === 0) return "none";
  return (
    <span className={classes.states}>
      {one.modules.map((module) => (
        <span key={module.name} title={module.last_error ?? undefined}>
          <StateBadge {...stateOf(module, one.is_polling_enabled)} /> {module.name} <Instant at={module.last_success_at} ago />
        </span>
      ))}
    </span>
  );
}

function filterOf(url: Url) {
  const enabled = url.one("enabled");
  return { q: url.one("q") || undefined, module: url.one("module") || undefined, enabled: enabled === "yes" ? true : enabled === "no" ? false : undefined };
}

export default function EntitiesView() {
  const url = useUrl();
  const isAdmin = useMay("admin");
  const [creating, setCreating] = useState(false);
  const filter = filterOf(url);
  const filtered = NAMES.some((name) => url.one(name) !== "");
  const modules = useQuery({ queryKey: ["fanout", "modules"], queryFn: ({ signal }) => get("/v1/modules", { signal }), staleTime: 30_000 });
  const pages = usePages({ queryKey: ["fanout", "entities", filter], load: (cursor, signal) => get("/v1/fanout/entities", { query: { ...filter, cursor, limit: 50 }, signal }) });
  return (
    <View
      title="Entities"
      actions={
        isAdmin && (
          <Button leftSection={<Glyph name="plus" size={12} />} onClick={() => setCreating(true)}>
            Create
          </Button>
        )
      }
    >
      <Matrix hours={6} module={filter.module} polledOnly />
      <Filters names={NAMES}>
        <TextFilter name="q" label="Entity" placeholder="begins with" width={220} first />
        <ChoiceFilter name="module" label="Module" names options={(modules.data?.items ?? []).map((one) => one.name)} />
        <ChoiceFilter
          name="enabled"
          label="Polling"
          width={130}
          options={[
            { value: "yes", label: "enabled" },
            { value: "no", label: "paused" },
          ]}
        />
      </Filters>
      <DataTable
        label="Entities by code"
        columns={COLUMNS}
        pages={pages}
        rowKey={(one) => one.code}
        onOpen={(one) => url.set({ entity: one.code }, true)}
        openKey={url.one("entity")}
        empty={
          pages.hasMore ? (
            <EmptyState title="No entity matches so far">One request searches at most 5,000 entities; the next one is being sent.</EmptyState>
          ) : (
            <EmptyState title={filtered ? "No entity matches" : "There is no entity"}>
              {filtered ? "Remove a filter. The filter Entity compares the beginning of the code." : "Create one here, with tickwright entities put, or as a row in tickwright.entities."}
            </EmptyState>
          )
        }
      />
      <EntityDrawer code={url.one("entity")} onClose={() => url.set({ entity: null, of: null })} />
      {creating && <EntityForm onClose={() => setCreating(false)} />}
    </View>
  );
}
