/** What an admin does with an entity, each after a question with its number. */
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
      <Flip entity={entity} />
      <Delete entity={entity} onClose={onClose} />
      {editing && <EntityForm entity={entity} onClose={() => setEditing(false)} />}
    </Group>
  );
}

function Flip({ entity }: { entity: Props["entity"] }) {
  const confirm = useConfirm();
  const path = { path: { code: entity.code } };
  const does = entity.is_polling_enabled ? "Pause" : "Enable";
  const action = useAction({
    run: () => (entity.is_polling_enabled ? post("/v1/entities/{code}/pause", path) : post("/v1/entities/{code}/enable", path)),
    told: (done) => `${done.code} is ${done.is_polling_enabled ? "enabled" : "paused"}`,
    touches: ["fanout"],
  });
  async function ask(): Promise<void> {
    const text = entity.is_polling_enabled ? `${entity.code} is polled no more for its ${entity.modules.length} modules; what runs goes on.` : `${entity.code} is polled again, from the window on that lies around now.`;
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
    told: () => {
      onClose();
      return `${code} is deleted`;
    },
    touches: ["fanout"],
  });
  async function ask(): Promise<void> {
    const text = `${code} is polled no more, and its party is forgotten. When its last runs succeeded stays known.`;
    if (await confirm({ title: "Delete 1 entity?", text, does: "Delete 1 entity", danger: true })) action.mutate(undefined);
  }
  return (
    <Button variant="default" loading={action.isPending} onClick={() => void ask()}>
      Delete
    </Button>
  );
}
