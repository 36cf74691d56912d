/** The button and the dialogue that create a key. */
import { Alert, Button, Group, Modal, Select, Stack, TextInput } from "@mantine/core";
import { useState } from "react";
import { post, Problem } from "../../api/client";
import type { Role } from "../../app/session";
import { Glyph } from "../../parts/Glyph";
import { useAction } from "../../parts/useAction";

const ROLES: { value: Role; label: string }[] = [
  { value: "viewer", label: "viewer – reads, changes nothing" },
  { value: "operator", label: "operator – runs, cancels, retries, replays" },
  { value: "admin", label: "admin – changes all settings, and creates keys" },
];
const TERMS = [
  { value: "30d", label: "30 days" },
  { value: "90d", label: "90 days" },
  { value: "365d", label: "a year" },
];

export function NewKey({ onMade }: { onMade: (key: string) => void }) {
  const [open, setOpen] = useState(false);
  const [name, setName] = useState("");
  const [role, setRole] = useState<Role>("viewer");
  const [term, setTerm] = useState<string | null>(null);
  const action = useAction({
    run: () => post("/v1/keys", { body: { name: name.trim(), role, expires_in: term } }),
    message: (made) => `${made.details.name} has a key with the role ${role}.`,
    invalidates: ["keys"],
  });
  const end = () => {
    setOpen(false);
    setName("");
    action.reset();
  };
  const create = () =>
    action.mutate(undefined, {
      onSuccess: (made) => {
        end();
        onMade(made.key);
      },
    });
  return (
    <>
      <Button leftSection={<Glyph name="plus" size={14} />} onClick={() => setOpen(true)}>
        New key
      </Button>
      <Modal opened={open} onClose={end} title="New key" closeButtonProps={{ "aria-label": "Close" }}>
        <Stack gap="sm">
          <TextInput label="Name" description="The person or program that uses the key; shown in the audit trail." value={name} onChange={(event) => setName(event.currentTarget.value)} data-autofocus />
          <Select label="Role" data={ROLES} value={role} onChange={(value) => setRole(ROLES.find((one) => one.value === value)?.value ?? "viewer")} allowDeselect={false} />
          <Select label="Ends after" data={TERMS} value={term} onChange={setTerm} placeholder="never" clearable clearButtonProps={{ "aria-label": "Never" }} />
          {action.error instanceof Problem && (
            <Alert color="red" variant="light" role="alert" title={`Refused (${action.error.code})`}>
              {action.error.message}
            </Alert>
          )}
          <Group justify="flex-end" gap="xs">
            <Button variant="default" onClick={end}>
              Go back
            </Button>
            <Button disabled={name.trim() === ""} loading={action.isPending} onClick={create}>
              Create 1 key
            </Button>
          </Group>
        </Stack>
      </Modal>
    </>
  );
}
