/** Sets a report type whole, in the words of `[report_types.NAME]` as JSON; the API names every mistake. */
import { Alert, Button, Group, Modal, Stack, Textarea, TextInput } from "@mantine/core";
import { useState, type FormEvent } from "react";
import { put, type Schemas } from "../../api/client";
import { parseUsers, pretty } from "../../api/json";
import { ErrorBox } from "../../parts/ErrorBox";
import { useAction } from "../../parts/useAction";
import classes from "./reports.module.css";

const EXAMPLE = `{
  "parameters": {"country": "text"},
  "listeners": {"users": {"source": "crm", "sql": "SELECT id, name FROM users WHERE country = :country"}}
}`;

interface Props {
  /** The type to be set again; left out, one is made. */
  type?: Schemas["ReportTypeDetail"];
  onClose: () => void;
}

export function TypeForm({ type, onClose }: Props) {
  const [name, setName] = useState(type?.name ?? "");
  const [text, setText] = useState(type === undefined ? EXAMPLE : pretty(type.definition));
  const save = useAction({
    run: async () => put("/v1/report-types/{name}", { path: { name: name.trim() }, body: parseUsers(text) as Record<string, unknown> }),
    told: (stored) => {
      onClose();
      return `${stored.report_type.name} ${stored.created ? "is created" : "is set"}`;
    },
    touches: ["report-types"],
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
          {type === undefined && <TextInput label="Name" required maxLength={50} value={name} onChange={(event) => setName(event.currentTarget.value)} />}
          {type?.set_by === "app" && <Alert variant="light">A program brings this type. Once it is set here, the program changes it no more.</Alert>}
          <Textarea label="Definition" description="JSON" classNames={{ input: classes.mono ?? "" }} autosize minRows={10} maxRows={24} spellCheck={false} value={text} onChange={(event) => setText(event.currentTarget.value)} />
          {save.error !== null && <ErrorBox error={save.error} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Leave it
            </Button>
            <Button type="submit" loading={save.isPending}>
              {type === undefined ? "Create 1 report type" : "Set 1 report type"}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
