/** Creates or replaces a report type: JSON with the fields of `[report_types.NAME]`; the API reports all mistakes. */
import { Alert, Button, Group, Modal, Stack, TextInput } from "@mantine/core";
import { useState, type FormEvent } from "react";
import { put, type Schemas } from "../../api/client";
import { pretty, readObject } from "../../api/json";
import { ErrorBox } from "../../parts/ErrorBox";
import { JsonField } from "../../parts/JsonField";
import { useAction } from "../../parts/useAction";

const EXAMPLE = `{
  "parameters": {"country": "text"},
  "listeners": {"users": {"source": "crm", "sql": "SELECT id, name FROM users WHERE country = :country"}}
}`;

interface Props {
  /** The type to replace; left out, one is created. */
  type?: Schemas["ReportTypeDetail"];
  onClose: () => void;
}

export function TypeForm({ type, onClose }: Props) {
  const [name, setName] = useState(type?.name ?? "");
  const [text, setText] = useState(type === undefined ? EXAMPLE : pretty(type.definition));
  const definition = readObject(text);
  const save = useAction({
    run: async () => put("/v1/report-types/{name}", { path: { name: name.trim() }, body: definition.value ?? {} }),
    message: (stored) => {
      onClose();
      return `${stored.report_type.name} ${stored.created ? "is created" : "is saved"}`;
    },
    invalidates: ["report-types"],
    quiet: true,
  });
  return (
    <Modal opened onClose={onClose} size="xl" title={type === undefined ? "Create a report type" : `Edit ${type.name}`} closeButtonProps={{ "aria-label": "Close" }}>
      <form
        onSubmit={(event: FormEvent) => {
          event.preventDefault();
          save.mutate(undefined);
        }}
      >
        <Stack>
          {type === undefined && <TextInput label="Name" required value={name} onChange={(event) => setName(event.currentTarget.value)} />}
          {type?.set_by === "app" && <Alert variant="light">A program defines this report type. After it is saved here, the program no longer changes it.</Alert>}
          <JsonField label="Definition" description="JSON" minRows={10} value={text} onChange={setText} />
          {save.error !== null && <ErrorBox error={save.error} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Go back
            </Button>
            <Button type="submit" disabled={definition.value === null} loading={save.isPending}>
              {type === undefined ? "Create 1 report type" : "Save 1 report type"}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
