/** One entity: the state of its polls for each module, and the reason. */
import { Select, Stack } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { get, type Schemas } from "../../api/client";
import { updating } from "../../app/prefs";
import { useMay } from "../../app/session";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { ErrorBox } from "../../parts/ErrorBox";
import { Explain } from "../../parts/Explain";
import { Facts } from "../../parts/Facts";
import { Instant } from "../../parts/Instant";
import { Json } from "../../parts/Json";
import { Side } from "../../parts/Side";
import { StateBadge } from "../../parts/StateBadge";
import { useUrl } from "../../parts/useUrl";
import { Section } from "../../parts/View";
import { Waiting } from "../../parts/Waiting";
import { EntityActions } from "./EntityActions";
import { stateOf } from "./state";

type Detail = Schemas["EntityDetail"];
type Module = Schemas["EntityModule"];

export function EntityDrawer({ code, onClose }: { code: string; onClose: () => void }) {
  return (
    <Side open={code !== ""} title={code} onClose={onClose} wide>
      {code !== "" && <Shown key={code} code={code} onClose={onClose} />}
    </Side>
  );
}

function Shown({ code, onClose }: { code: string; onClose: () => void }) {
  const url = useUrl();
  const isAdmin = useMay("admin");
  const held = updating.use() === "held";
  const found = useQuery({ queryKey: ["fanout", "entity", code], queryFn: ({ signal }) => get("/v1/entities/{code}", { path: { code }, signal }), refetchInterval: held ? false : 3_000 });
  const one = found.data;
  if (one === undefined) return found.error ? <ErrorBox error={found.error} onRetry={() => void found.refetch()} /> : <Waiting lines={12} />;
  const chosen = one.modules.find((module) => module.name === url.one("of")) ?? one.modules[0];
  return (
    <Stack gap="lg">
      {found.error !== null && <ErrorBox error={found.error} onRetry={() => void found.refetch()} kept />}
      {isAdmin && <EntityActions entity={one} onClose={onClose} />}
      <Facts
        of={[
          ["Polling", <StateBadge key="polling" state={one.is_polling_enabled ? "enabled" : "paused"} />],
          ["Partner", one.partner === null ? null : <Link key="partner" href={`/partners?partner=${encodeURIComponent(one.partner)}`}>{one.partner}</Link>],
          ["Version", String(one.config_version)],
          ["Created", <Instant key="created" at={one.created_at} />],
          ["Changed", <Instant key="changed" at={one.updated_at} />],
        ]}
      />
      <Section title="Modules">
        <DataTable
          label={`Modules of ${code}`}
          grows
          columns={columnsOf(one)}
          pages={{ rows: one.modules, error: null }}
          rowKey={(module) => module.name}
          onOpen={(module) => url.set({ of: module.name })}
          openKey={chosen?.name ?? null}
          empty={<EmptyState title="It is polled for no module">An admin can add modules here, or with tickwright entities put.</EmptyState>}
        />
      </Section>
      {chosen !== undefined && <Why code={code} chosen={chosen} modules={one.modules} onChoose={(name) => url.set({ of: name })} />}
      <Section title="Party">
        <Json label="party" value={one.party} hidden={one.payload_hidden} />
      </Section>
    </Stack>
  );
}

function columnsOf(entity: Detail): Column<Module>[] {
  return [
    { id: "name", header: "Module", cell: (one) => one.name },
    { id: "state", header: "State", width: 100, cell: (one) => <StateBadge {...stateOf(one, entity.is_polling_enabled)} /> },
    { id: "success", header: "Last success", width: 130, cell: (one) => <Instant at={one.last_success_at} ago /> },
    { id: "failures", header: "Failures since", width: 100, align: "right", hide: "sm", cell: (one) => one.failures },
    { id: "next", header: "Next window", width: 110, hide: "sm", cell: (one) => <Instant at={one.next_window_at} ago /> },
    { id: "error", header: "Last error", width: "28%", hide: "md", cell: (one) => <span title={one.last_error ?? ""}>{one.last_error ?? "–"}</span> },
  ];
}

interface WhyProps {
  code: string;
  chosen: Module;
  modules: readonly Module[];
  onChoose: (name: string | null) => void;
}

function Why({ code, chosen, modules, onChoose }: WhyProps) {
  return (
    <Section title="Why it is polled now, or not">
      <Select label="Module" w={200} mb="xs" data={modules.map((one) => one.name)} value={chosen.name} onChange={onChoose} allowDeselect={false} />
      <Explain
        queryKey={["fanout", "explain", code, chosen.name, chosen.failures, chosen.running_since, chosen.last_success_at]}
        load={(signal) => get("/v1/entities/{code}/explain", { path: { code }, query: { module: chosen.name }, signal })}
      />
    </Section>
  );
}
