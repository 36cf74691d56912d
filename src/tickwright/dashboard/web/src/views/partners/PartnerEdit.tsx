/** A partner's settings, with the fields of `[partners.NAME]`; the API reports all mistakes at once. */
import { Alert, Button, Group, Modal, Stack, TextInput } from "@mantine/core";
import { useState } from "react";
import { pretty, readObject } from "../../api/json";
import { patch, Problem, put, type Schemas } from "../../api/client";
import { useConfirm } from "../../parts/Confirm";
import { Glyph } from "../../parts/Glyph";
import { JsonField } from "../../parts/JsonField";
import { useAction } from "../../parts/useAction";
import { Section } from "../../parts/View";
import { bodyOf, changesOf } from "./settings";

type Partner = Schemas["PartnerView"];

export function PartnerEdit({ partner, onClose }: { partner: Partner; onClose: () => void }) {
  const [was] = useState(() => pretty(partner.settings));
  const [text, setText] = useState(was);
  const read = readObject(text);
  const changes = read.value === null ? {} : changesOf(readObject(was).value ?? {}, read.value);
  const number = Object.keys(changes).length;
  const confirm = useConfirm();
  const action = useAction({
    run: () => patch("/v1/partners/{name}", { path: { name: partner.name }, body: bodyOf(changes) }),
    message: (now) => `The settings of ${now.name} are changed.`,
    invalidates: ["partners"],
  });
  async function save(): Promise<void> {
    const yes = await confirm({
      title: `Change partner ${partner.name}?`,
      text: `${Object.keys(changes).join(", ")}: all processes apply the change within seconds.`,
      does: `Change ${number} setting${number === 1 ? "" : "s"}`,
    });
    if (yes) action.mutate(undefined, { onSuccess: onClose });
  }
  return (
    <Section title="Edit the settings">
      <Stack gap="xs">
        <SettingsField text={text} onChange={setText} />
        <Refused error={action.error} />
        <Group justify="flex-end" gap="xs">
          <Button variant="default" onClick={onClose}>
            Go back
          </Button>
          <Button onClick={() => void save()} disabled={number === 0} loading={action.isPending}>
            Save
          </Button>
        </Group>
      </Stack>
    </Section>
  );
}

const EXAMPLE = '{\n  "rate": "10/s",\n  "concurrency": 10,\n  "timeout": "10s",\n  "http": { "url": "https://example.org/track/{external_id}", "status": "status" }\n}';

/** The button and the dialogue that create a partner. */
export function NewPartner() {
  const [open, setOpen] = useState(false);
  const [name, setName] = useState("");
  const [text, setText] = useState(EXAMPLE);
  const read = readObject(text);
  const action = useAction({
    run: () => put("/v1/partners/{name}", { path: { name }, body: bodyOf(read.value ?? {}) }),
    message: (stored) => `Partner ${stored.partner.name} is ${stored.created ? "created" : "replaced"}.`,
    invalidates: ["partners"],
  });
  const end = () => {
    setOpen(false);
    setName("");
    setText(EXAMPLE);
    action.reset();
  };
  return (
    <>
      <Button leftSection={<Glyph name="plus" size={14} />} onClick={() => setOpen(true)}>
        New partner
      </Button>
      <Modal opened={open} onClose={end} title="New partner" size="lg" closeButtonProps={{ "aria-label": "Close" }}>
        <Stack gap="sm">
          <TextInput label="Name" description="Letters, digits, “_”, “.”, “-”. An existing partner of this name is replaced." value={name} onChange={(event) => setName(event.currentTarget.value.trim())} data-autofocus />
          <SettingsField text={text} onChange={setText} />
          <Refused error={action.error} />
          <Group justify="flex-end" gap="xs">
            <Button variant="default" onClick={end}>
              Go back
            </Button>
            <Button disabled={name === "" || read.value === null} loading={action.isPending} onClick={() => action.mutate(undefined, { onSuccess: end })}>
              Create 1 partner
            </Button>
          </Group>
        </Stack>
      </Modal>
    </>
  );
}

function SettingsField({ text, onChange }: { text: string; onChange: (text: string) => void }) {
  return <JsonField label="Settings" description="JSON with the fields of [partners.NAME]: rate, per_minute, per_day, concurrency, timeout, quiet, breaker, terminal_statuses, http" value={text} onChange={onChange} />;
}

/** The mistakes that the API found, one a line. */
function Refused({ error }: { error: Error | null }) {
  if (!(error instanceof Problem)) return null;
  return (
    <Alert color="red" variant="light" role="alert" title={`Refused (${error.code})`} style={{ whiteSpace: "pre-wrap" }}>
      {error.message}
    </Alert>
  );
}
