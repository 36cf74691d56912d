/** One report type: its listeners and its definition, which admins can change. */
import { Button, Group, Stack } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { del, get, type Schemas } from "../../api/client";
import { useMay } from "../../app/session";
import { Answer } from "../../parts/Answer";
import { useConfirm } from "../../parts/Confirm";
import { Facts } from "../../parts/Facts";
import { Instant } from "../../parts/Instant";
import { Json } from "../../parts/Json";
import { Side } from "../../parts/Side";
import { useAction } from "../../parts/useAction";
import { Section } from "../../parts/View";
import { TypeForm } from "./TypeForm";

interface Props {
  name: string;
  onClose: () => void;
}

export function TypeDrawer({ name, onClose }: Props) {
  return (
    <Side open={name !== ""} title={name} onClose={onClose}>
      {name !== "" && <Shown key={name} name={name} onClose={onClose} />}
    </Side>
  );
}

function Shown({ name, onClose }: Props) {
  const found = useQuery({ queryKey: ["report-types", "one", name], queryFn: ({ signal }) => get("/v1/report-types/{name}", { path: { name }, signal }) });
  return (
    <Answer of={found} lines={8}>
      {(one) => <One type={one} onClose={onClose} />}
    </Answer>
  );
}

function One({ type: one, onClose }: { type: Schemas["ReportTypeDetail"]; onClose: () => void }) {
  const isAdmin = useMay("admin");
  return (
    <Stack gap="lg">
      {isAdmin && <Actions type={one} onClose={onClose} />}
      <Facts
        of={[
          ["Listeners", one.listeners.join(", ")],
          ["Stages", String(one.stages)],
          ["Format", one.format],
          ["Set by", one.set_by],
          ["Changed", <Instant key="changed" at={one.updated_at} />],
          ["Its reports", <Link key="reports" href={`/reports?type=${encodeURIComponent(one.name)}`}>show</Link>],
        ]}
      />
      <Section title="Definition">
        <Json label="definition" value={one.definition} />
      </Section>
    </Stack>
  );
}

function Actions({ type, onClose }: { type: Schemas["ReportTypeDetail"]; onClose: () => void }) {
  const confirm = useConfirm();
  const [editing, setEditing] = useState(false);
  const action = useAction({
    run: () => del("/v1/report-types/{name}", { path: { name: type.name } }),
    message: () => {
      onClose();
      return `${type.name} is deleted`;
    },
    invalidates: ["report-types"],
  });
  async function ask(): Promise<void> {
    const text = `${type.name} can no longer be requested. Requested reports continue.`;
    if (await confirm({ title: "Delete 1 report type?", text, does: "Delete 1 report type", danger: true })) action.mutate(undefined);
  }
  return (
    <Group gap="xs">
      <Button onClick={() => setEditing(true)}>Edit</Button>
      <Button variant="default" loading={action.isPending} onClick={() => void ask()}>
        Delete
      </Button>
      {editing && <TypeForm type={type} onClose={() => setEditing(false)} />}
    </Group>
  );
}
