/** Makes a module, or sets it whole. */
import { Alert, Button, Checkbox, Group, Modal, Stack, TextInput } from "@mantine/core";
import { useState, type FormEvent } from "react";
import { put, type Schemas } from "../../api/client";
import { ErrorBox } from "../../parts/ErrorBox";
import { useAction } from "../../parts/useAction";

interface Props {
  /** The module to be changed; left out, one is made. */
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
    told: (stored) => {
      onClose();
      return `${stored.module.name} ${stored.created ? "is created" : "is set"}`;
    },
    touches: ["fanout"],
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
          {module?.set_by === "app" && <Alert variant="light">A program brings this module. Once it is set here, the program changes it no more.</Alert>}
          <TextInput label="Window" description="whole seconds from 1s to 1d" required value={every} onChange={(event) => setEvery(event.currentTarget.value)} />
          <TextInput label="Timeout of a run" description="from 10ms to 25m" required value={timeout} onChange={(event) => setLongest(event.currentTarget.value)} />
          <Checkbox label="Gate: only where a scheduler's environment allows it" checked={gated} onChange={(event) => setGated(event.currentTarget.checked)} />
          {save.error !== null && <ErrorBox error={save.error} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Leave it
            </Button>
            <Button type="submit" loading={save.isPending}>
              {module === undefined ? "Create 1 module" : "Set 1 module"}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
