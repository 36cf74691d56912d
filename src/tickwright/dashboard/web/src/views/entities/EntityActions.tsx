/** The actions of an admin on an entity; pause, enable and delete ask for confirmation. */
import { Button, Group } from "@mantine/core";
import { useState } from "react";
import { del, post, type Schemas } from "../../api/client";
import { useConfirm } from "../../parts/Confirm";
import { useAction } from "../../parts/useAction";
import { EntityForm } from "./EntityForm";

interface Props {
  entity: Schemas["EntityDetail"];
  onClose: () => void;
}

export function EntityActions({ entity, onClose }: Props) {
  const [editing, setEditing] = useState(false);
  return (
    <Group gap="xs">
      <Button onClick={() => setEditing(true)}>Edit</Button>
      <Toggle entity={entity} />
      <Delete entity={entity} onClose={onClose} />
      {editing && <EntityForm entity={entity} onClose={() => setEditing(false)} />}
    </Group>
  );
}

function Toggle({ entity }: { entity: Props["entity"] }) {
  const confirm = useConfirm();
  const path = { path: { code: entity.code } };
  const does = entity.is_polling_enabled ? "Pause" : "Enable";
  const action = useAction({
    run: () => (entity.is_polling_enabled ? post("/v1/entities/{code}/pause", path) : post("/v1/entities/{code}/enable", path)),
    message: (done) => `${done.code} is ${done.is_polling_enabled ? "enabled" : "paused"}`,
    invalidates: ["fanout"],
  });
  async function ask(): Promise<void> {
    const text = entity.is_polling_enabled ? `${entity.code} is no longer polled for its ${entity.modules.length} modules; running polls continue.` : `${entity.code} is polled again, from the current window on.`;
    if (await confirm({ title: `${does} 1 entity?`, text, does: `${does} 1 entity`, danger: entity.is_polling_enabled })) action.mutate(undefined);
  }
  return (
    <Button variant="default" loading={action.isPending} onClick={() => void ask()}>
      {does}
    </Button>
  );
}

function Delete({ entity: { code }, onClose }: Props) {
  const confirm = useConfirm();
  const action = useAction({
    run: () => del("/v1/entities/{code}", { path: { code } }),
    message: () => {
      onClose();
      return `${code} is deleted`;
    },
    invalidates: ["fanout"],
  });
  async function ask(): Promise<void> {
    const text = `${code} is no longer polled, and its party is deleted. The times of its last successes are kept.`;
    if (await confirm({ title: "Delete 1 entity?", text, does: "Delete 1 entity", danger: true })) action.mutate(undefined);
  }
  return (
    <Button variant="default" loading={action.isPending} onClick={() => void ask()}>
      Delete
    </Button>
  );
}
