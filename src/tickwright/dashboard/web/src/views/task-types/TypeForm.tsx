/** Creates a task type, or changes the edited settings; it is refused if the type was changed in between. */
import { Button, Checkbox, Group, Modal, SimpleGrid, Stack, TextInput } from "@mantine/core";
import { useState, type FormEvent } from "react";
import { patch, put, type Schemas } from "../../api/client";
import { ErrorBox } from "../../parts/ErrorBox";
import { useAction } from "../../parts/useAction";
import type { TaskType } from "./rows";
import { changesOf, DEFAULTS, fieldsOf, settingsOf, type Fields } from "./settings";

interface Props {
  /** The type to change; `null` creates one. */
  type: TaskType | null;
  onClose: () => void;
  onSecret: (secret: string) => void;
}

export function TypeForm({ type, onClose, onSecret }: Props) {
  const [name, setName] = useState("");
  const [fields, setFields] = useState<Fields>(type === null ? DEFAULTS : fieldsOf(type));
  const [version] = useState(type?.version);
  const changed = type === null ? settingsOf(fields) : changesOf(type, fields);
  const number = Object.keys(changed).length;
  const save = useAction({
    run: (): Promise<Schemas["StoredTaskType"]> =>
      type === null
        ? put("/v1/task-types/{name}", { path: { name: name.trim() }, body: settingsOf(fields) })
        : patch("/v1/task-types/{name}", { path: { name: type.name }, body: { ...changed, ...(version === undefined ? {} : { version }) } }),
    message: (stored) => {
      onClose();
      if (stored.secret !== null) onSecret(stored.secret);
      return type === null ? `${stored.task_type.name} ${stored.created ? "is created" : "existed and is replaced"}` : `${type.name}: ${number} ${number === 1 ? "setting" : "settings"} changed`;
    },
    invalidates: ["task-types"],
    quiet: true,
  });
  const text = (field: "target" | "timeout" | "retry_base" | "retry_cap" | "final_statuses" | "queue" | "needs" | "group_order", label: string, description?: string) => (
    <TextInput
      label={label}
      description={description}
      value={fields[field]}
      required={field !== "final_statuses" && field !== "needs" && field !== "group_order"}
      onChange={(event) => setFields({ ...fields, [field]: event.currentTarget.value })}
    />
  );
  const figure = (field: "max_attempts" | "retry_factor" | "concurrency" | "rate_per_s" | "group_limit" | "group_rate_per_s", label: string, description?: string) => (
    <TextInput
      label={label}
      description={description}
      inputMode="decimal"
      value={fields[field]}
      required={field === "max_attempts" || field === "retry_factor"}
      onChange={(event) => setFields({ ...fields, [field]: event.currentTarget.value })}
    />
  );
  return (
    <Modal opened onClose={onClose} size="lg" title={type === null ? "Create a task type" : `Edit ${type.name}`} closeButtonProps={{ "aria-label": "Close" }}>
      <form
        onSubmit={(event: FormEvent) => {
          event.preventDefault();
          save.mutate();
        }}
      >
        <Stack>
          {type === null && (
            <TextInput label="Name" description="letters, digits, _ . : -" required value={name} onChange={(event) => setName(event.currentTarget.value)} />
          )}
          {text("target", "Target", "https://…, wss://…, amqp:EXCHANGE/ROUTING_KEY, kafka:TOPIC, pg:TOPIC, python:NAME, remote:POOL")}
          <SimpleGrid cols={{ base: 2, xs: 3 }} spacing="sm" style={{ alignItems: "end" }}>
            {text("timeout", "Timeout")}
            {figure("max_attempts", "Maximum attempts")}
            {text("retry_base", "First back-off")}
            {figure("retry_factor", "Back-off factor")}
            {text("retry_cap", "Maximum back-off")}
            {text("final_statuses", "Final statuses")}
            {figure("concurrency", "Concurrency")}
            {figure("rate_per_s", "Rate per second")}
            {text("queue", "Queue")}
            {text("needs", "Needs of its workers")}
            {figure("group_limit", "At once in a group")}
            {figure("group_rate_per_s", "Group rate per second")}
            {text("group_order", "Group order")}
          </SimpleGrid>
          <Checkbox
            label="Keep history of its jobs"
            checked={fields.keep_history}
            onChange={(event) => setFields({ ...fields, keep_history: event.currentTarget.checked })}
          />
          <Checkbox
            label="Encrypt payloads and results"
            description="It cannot be undone."
            disabled={type?.encrypted === true}
            checked={fields.encrypted}
            onChange={(event) => setFields({ ...fields, encrypted: event.currentTarget.checked })}
          />
          {save.error !== null && <ErrorBox error={save.error} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Go back
            </Button>
            <Button type="submit" loading={save.isPending} disabled={number === 0}>
              {type === null ? "Create 1 task type" : `Change ${number} ${number === 1 ? "setting" : "settings"}`}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
