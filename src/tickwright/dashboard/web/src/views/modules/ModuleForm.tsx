/** Creates a module, or replaces all its settings. */
import { Alert, Button, Checkbox, Group, Modal, Stack, TextInput } from "@mantine/core";
import { useState, type FormEvent } from "react";
import { put, type Schemas } from "../../api/client";
import { ErrorBox } from "../../parts/ErrorBox";
import { useAction } from "../../parts/useAction";

interface Props {
  /** The module to change; left out, one is created. */
  module?: Schemas["ModuleDetail"];
  onClose: () => void;
}

export function ModuleForm({ module, onClose }: Props) {
  const [name, setName] = useState(module?.name ?? "");
  const [every, setEvery] = useState(module?.every ?? "15m");
  const [timeout, setLongest] = useState(module?.timeout ?? "60s");
  const [gated, setGated] = useState(module?.gated ?? false);
  const save = useAction({
    run: () => put("/v1/modules/{name}", { path: { name: name.trim() }, body: { every: every.trim(), timeout: timeout.trim(), gated } }),
    message: (stored) => {
      onClose();
      return `${stored.module.name} ${stored.created ? "is created" : "is saved"}`;
    },
    invalidates: ["fanout"],
    quiet: true,
  });
  return (
    <Modal opened onClose={onClose} title={module === undefined ? "Create a module" : `Edit ${module.name}`} closeButtonProps={{ "aria-label": "Close" }}>
      <form
        onSubmit={(event: FormEvent) => {
          event.preventDefault();
          save.mutate(undefined);
        }}
      >
        <Stack>
          {module === undefined && <TextInput label="Name" required value={name} onChange={(event) => setName(event.currentTarget.value)} />}
          {module?.set_by === "app" && <Alert variant="light">A program defines this module. After it is saved here, the program no longer changes it.</Alert>}
          <TextInput label="Window" description="whole seconds from 1s to 1d" required value={every} onChange={(event) => setEvery(event.currentTarget.value)} />
          <TextInput label="Timeout of a run" description="from 10ms to 25m" required value={timeout} onChange={(event) => setLongest(event.currentTarget.value)} />
          <Checkbox label="Gated: published only by schedulers whose environment enables it" checked={gated} onChange={(event) => setGated(event.currentTarget.checked)} />
          {save.error !== null && <ErrorBox error={save.error} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Go back
            </Button>
            <Button type="submit" loading={save.isPending}>
              {module === undefined ? "Create 1 module" : "Save 1 module"}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
