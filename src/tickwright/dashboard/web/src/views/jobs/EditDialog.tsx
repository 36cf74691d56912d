/** Another payload, priority and other tags of a pending job, as it was when the dialogue opened: a change meanwhile is refused. */
import { Button, Checkbox, Group, Modal, NumberInput, Stack, TextInput } from "@mantine/core";
import { useState } from "react";
import type { Schemas } from "../../api/client";
import { keepsNumbers, pretty, readJson } from "../../api/json";
import { JsonField } from "../../parts/JsonField";
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
  const [was] = useState(() => pretty(before.payload));
  const [payload, setPayload] = useState(was);
  const [fromStart, setFromStart] = useState(false);
  const shown = !before.payload_hidden && keepsNumbers(); // other browsers would change long numbers
  const read = readJson(payload);
  const simple = before.tags.every((tag) => !tag.includes(",") && tag === tag.trim());
  const to: JobEdit = changed(before, priority, simple ? partsOf(typed) : before.tags);
  if (shown && read.problem === null && pretty(read.value) !== was) to.payload = read.value;
  if (fromStart) to.from_start = true;
  const ready = read.problem === null && Object.keys(to).length > 0;
  return (
    <Modal opened size="lg" onClose={onClose} title={`Edit job ${before.id}`} closeButtonProps={{ "aria-label": "Close" }}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (ready) onEdit({ ...to, version: before.version });
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
          {shown && <JsonField any label="Payload" description="JSON, up to 65,536 bytes" minRows={4} value={payload} onChange={setPayload} />}
          {before.steps.length > 0 && (
            <Checkbox
              label="Run from the start"
              description={`Steps that are done run again: ${before.steps.map((step) => step.name).join(", ")}. Without this they stay done, also with another payload.`}
              checked={fromStart}
              onChange={(event) => setFromStart(event.currentTarget.checked)}
            />
          )}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Go back
            </Button>
            <Button type="submit" disabled={!ready} loading={busy}>
              Edit
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}

function changed(job: Job, priority: number | string, tags: string[]): JobEdit {
  const edit: JobEdit = {};
  if (typeof priority === "number" && priority !== job.priority) edit.priority = priority;
  if (JSON.stringify(tags) !== JSON.stringify(job.tags)) edit.tags = tags;
  return edit;
}
