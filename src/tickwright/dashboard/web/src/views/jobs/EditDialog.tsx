/** Another priority and other tags of a pending job, as it was when the dialogue opened: a change meanwhile is refused. */
import { Button, Group, Modal, NumberInput, Stack, TextInput } from "@mantine/core";
import { useState } from "react";
import type { Schemas } from "../../api/client";
import { partsOf } from "./filter";

type Job = Schemas["JobDetail"];
export type JobEdit = Schemas["EditRequest"];

interface Props {
  job: Job;
  /** The request is under way. The dialogue stays open until it succeeds, so that a refusal loses no input. */
  busy: boolean;
  onClose: () => void;
  onEdit: (to: JobEdit) => void;
}

export function EditDialog({ job, busy, onClose, onEdit }: Props) {
  const [before] = useState(job);
  const [priority, setPriority] = useState<number | string>(before.priority);
  const [typed, setTyped] = useState(before.tags.join(", "));
  const simple = before.tags.every((tag) => !tag.includes(",") && tag === tag.trim());
  const to = changed(before, priority, simple ? partsOf(typed) : before.tags);
  return (
    <Modal opened onClose={onClose} title={`Edit job ${before.id}`} closeButtonProps={{ "aria-label": "Close" }}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (to !== null) onEdit(to);
        }}
      >
        <Stack>
          <NumberInput
            label="Priority"
            description="-100 to 100; higher ones are first"
            min={-100}
            max={100}
            allowDecimal={false}
            value={priority}
            onChange={setPriority}
            data-autofocus
          />
          <TextInput
            label="Tags"
            description={simple ? "with commas between them" : "a tag with a comma in it is edited by REST or tickwright jobs edit"}
            disabled={!simple}
            value={typed}
            onChange={(event) => setTyped(event.currentTarget.value)}
          />
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Go back
            </Button>
            <Button type="submit" disabled={to === null} loading={busy}>
              Edit
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}

function changed(job: Job, priority: number | string, tags: string[]): JobEdit | null {
  const edit: JobEdit = {};
  if (typeof priority === "number" && priority !== job.priority) edit.priority = priority;
  if (JSON.stringify(tags) !== JSON.stringify(job.tags)) edit.tags = tags;
  return Object.keys(edit).length === 0 ? null : { ...edit, version: job.version };
}
