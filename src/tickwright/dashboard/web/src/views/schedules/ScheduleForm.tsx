/** Creates a schedule, or changes the edited fields; shows the next occurrences that the form has now. */
import { Alert, Button, Group, Modal, Select, SimpleGrid, Stack, TextInput } from "@mantine/core";
import { useDebouncedValue } from "@mantine/hooks";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { patch, post, put } from "../../api/client";
import { readObject } from "../../api/json";
import { ErrorBox } from "../../parts/ErrorBox";
import { JsonField } from "../../parts/JsonField";
import { useAction } from "../../parts/useAction";
import { Section } from "../../parts/View";
import { changesOf, DEFAULTS, fieldsOf, MISFIRES, OVERLAPS, requestOf, type Fields, type Schedule } from "./fields";
import { Occurrences } from "./Occurrences";

interface Props {
  /** The schedule to change; `null` creates one. */
  schedule: Schedule | null;
  onClose: () => void;
}

export function ScheduleForm({ schedule, onClose }: Props) {
  const [name, setName] = useState("");
  const [fields, setFields] = useState<Fields>(schedule === null ? DEFAULTS : fieldsOf(schedule));
  const [version] = useState(schedule?.version);
  const changes = schedule === null ? requestOf(fields) : changesOf(schedule, fields);
  const number = Object.keys(changes).length;
  const isJson = fields.payload === null || readObject(fields.payload).problem === null;
  const save = useAction({
    run: () =>
      schedule === null
        ? put("/v1/schedules/{name}", { path: { name: name.trim() }, body: requestOf(fields) })
        : patch("/v1/schedules/{name}", { path: { name: schedule.name }, body: { ...changes, ...(version === undefined ? {} : { version }) } }),
    message: (stored) => {
      onClose();
      return `${stored.schedule.name} ${stored.created ? "is created" : "is changed"}`;
    },
    invalidates: ["schedules"],
    quiet: true,
  });
  const text = (field: Exclude<keyof Fields, "payload">, label: string, description?: string) => (
    <TextInput label={label} description={description} value={fields[field]} onChange={(event) => setFields({ ...fields, [field]: event.currentTarget.value })} />
  );
  const choice = (field: "overlap" | "misfire", label: string, data: readonly { value: string; label: string }[]) => (
    <Select label={label} data={[...data]} value={fields[field]} allowDeselect={false} onChange={(value) => setFields({ ...fields, [field]: value ?? fields[field] })} />
  );
  return (
    <Modal opened onClose={onClose} size="lg" title={schedule === null ? "Create a schedule" : `Edit ${schedule.name}`} closeButtonProps={{ "aria-label": "Close" }}>
      <form
        onSubmit={(event: FormEvent) => {
          event.preventDefault();
          save.mutate(undefined);
        }}
      >
        <Stack>
          {schedule?.set_by === "app" && <Alert variant="light">A program declares this schedule. After it is saved here, the program no longer changes it.</Alert>}
          <SimpleGrid cols={{ base: 1, xs: 2 }} spacing="sm" style={{ alignItems: "end" }}>
            {schedule === null && <TextInput label="Name" description="letters, digits, _ . -" required value={name} onChange={(event) => setName(event.currentTarget.value)} />}
            {text("task_type", "Task type")}
            {text("cron", "Cron", "minute hour day month weekday, or @daily")}
            {text("every", "Every", "instead of cron: 15m, 1h, 1d")}
            {text("time_zone", "Time zone")}
            {text("spread", "Spread", "a fixed place in this window")}
            {choice("overlap", "If a job has not ended", OVERLAPS)}
            {choice("misfire", "Found too late", MISFIRES)}
            {text("misfire_grace", "Too late after")}
            {text("expires_after", "Cancel if not started within")}
            {text("priority", "Priority")}
            {text("max_attempts", "Maximum attempts", "as the task type, if empty")}
            {text("timeout", "Timeout", "as the task type, if empty")}
          </SimpleGrid>
          {fields.payload !== null && <JsonField label="Payload" description="of each job" minRows={3} value={fields.payload} onChange={(payload) => setFields({ ...fields, payload })} />}
          <NextOfForm name={schedule?.name ?? name.trim()} fields={fields} />
          {save.error !== null && <ErrorBox error={save.error} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Go back
            </Button>
            <Button type="submit" loading={save.isPending} disabled={number === 0 || !isJson}>
              {schedule === null ? "Create 1 schedule" : `Change ${number} ${number === 1 ? "field" : "fields"}`}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}

const TYPING_MS = 400;

/** What the times of the form mean, or what is wrong with them. */
function NextOfForm({ name, fields }: { name: string; fields: Fields }) {
  const { cron = null, every = null, time_zone, spread } = requestOf(fields);
  const [text] = useDebouncedValue(JSON.stringify({ cron, every, time_zone, spread }), TYPING_MS);
  const times = JSON.parse(text) as { cron: string | null; every: string | null };
  const isEmpty = times.cron === null && times.every === null;
  const found = useQuery({
    queryKey: ["schedules", "preview", name, text],
    queryFn: ({ signal }) =>
      post("/v1/schedules:preview", { query: { name: name || "preview", count: 10 }, body: { task_type: "preview", ...times }, signal }),
    enabled: !isEmpty,
    placeholderData: keepPreviousData,
    retry: false,
  });
  if (isEmpty) return null;
  if (found.error !== null) return <ErrorBox error={found.error} />;
  if (found.data === undefined) return null;
  return (
    <Section title={`${found.data.text} (${found.data.time_zone})`}>
      <Occurrences label="Next occurrences of this form" of={found.data.occurrences} />
    </Section>
  );
}
