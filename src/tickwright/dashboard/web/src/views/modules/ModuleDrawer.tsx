/** One module: its settings, its gate, its last windows; and for admins pause, enable and edit. */
import { Alert, Button, Code, Group, Stack } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { get, post, type Schemas } from "../../api/client";
import { updating } from "../../app/prefs";
import { useMay } from "../../app/session";
import { useConfirm } from "../../parts/Confirm";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { ErrorBox } from "../../parts/ErrorBox";
import { Facts } from "../../parts/Facts";
import { count } from "../../parts/Figure";
import { Instant } from "../../parts/Instant";
import { Side } from "../../parts/Side";
import { StateBadge } from "../../parts/StateBadge";
import { useAction } from "../../parts/useAction";
import { Section } from "../../parts/View";
import { Waiting } from "../../parts/Waiting";
import { ModuleForm } from "./ModuleForm";

type Detail = Schemas["ModuleDetail"];
const WINDOWS: Column<Schemas["ModuleWindow"]>[] = [
  { id: "at", header: "Window", cell: (one) => <Instant at={one.window_at} /> },
  { id: "succeeded", header: "Succeeded", width: 94, align: "right", cell: (one) => count(one.succeeded) },
  { id: "failed", header: "Failed", width: 80, align: "right", cell: (one) => count(one.failed) },
  { id: "superseded", header: "Superseded", width: 100, align: "right", hide: "sm", cell: (one) => count(one.superseded) },
  { id: "expired", header: "Expired", width: 84, align: "right", hide: "sm", cell: (one) => count(one.expired) },
];

export function ModuleDrawer({ name, onClose }: { name: string; onClose: () => void }) {
  return (
    <Side open={name !== ""} title={name} onClose={onClose}>
      {name !== "" && <Shown key={name} name={name} />}
    </Side>
  );
}

function Shown({ name }: { name: string }) {
  const isAdmin = useMay("admin");
  const held = updating.use() === "held";
  const found = useQuery({ queryKey: ["fanout", "module", name], queryFn: ({ signal }) => get("/v1/modules/{name}", { path: { name }, signal }), refetchInterval: held ? false : 5_000 });
  const one = found.data;
  if (one === undefined) return found.error ? <ErrorBox error={found.error} onRetry={() => void found.refetch()} /> : <Waiting lines={8} />;
  return (
    <Stack gap="lg">
      {found.error !== null && <ErrorBox error={found.error} onRetry={() => void found.refetch()} kept />}
      {isAdmin && <Actions module={one} />}
      {one.gated && (
        <Alert variant="light" title="Gated">
          Its windows are published only by schedulers whose environment has <Code>{`ENABLE_${name}_POLLING=true`}</Code>.
        </Alert>
      )}
      <Facts
        of={[
          ["State", <StateBadge key="state" state={one.paused_at === null ? "enabled" : "paused"} />],
          ["Paused since", <Instant key="paused" at={one.paused_at} />],
          ["Window", one.every],
          ["Timeout of a run", one.timeout],
          ["Entities", <Link key="entities" href={`/entities?module=${encodeURIComponent(name)}`}>{count(one.entities)}</Link>],
          ["Stale for three windows", count(one.entities_stale)],
          ["Set by", one.set_by],
          ["Changed", <Instant key="changed" at={one.updated_at} />],
        ]}
      />
      <Section title="Last windows">
        <DataTable label={`Last windows of ${name}`} grows columns={WINDOWS} pages={{ rows: one.windows, error: null }} rowKey={(window) => window.window_at} empty={<EmptyState title="No window so far" />} />
      </Section>
    </Stack>
  );
}

function Actions({ module }: { module: Detail }) {
  const confirm = useConfirm();
  const [editing, setEditing] = useState(false);
  const path = { path: { name: module.name } };
  const paused = module.paused_at !== null;
  const does = paused ? "Enable" : "Pause";
  const action = useAction({
    run: () => (paused ? post("/v1/modules/{name}/enable", path) : post("/v1/modules/{name}/pause", path)),
    message: (done) => `${done.name} is ${done.paused_at === null ? "enabled" : "paused"}`,
    invalidates: ["fanout"],
  });
  async function ask(): Promise<void> {
    const entities = `${count(module.entities)} ${module.entities === 1 ? "entity" : "entities"}`;
    const text = paused ? `${entities} are polled for ${module.name} again, from the current window on.` : `${entities} are no longer polled for ${module.name}; running polls continue.`;
    if (await confirm({ title: `${does} 1 module?`, text, does: `${does} 1 module`, danger: !paused })) action.mutate(undefined);
  }
  return (
    <Group gap="xs">
      <Button onClick={() => setEditing(true)}>Edit</Button>
      <Button variant="default" loading={action.isPending} onClick={() => void ask()}>
        {does}
      </Button>
      {editing && <ModuleForm module={module} onClose={() => setEditing(false)} />}
    </Group>
  );
}
