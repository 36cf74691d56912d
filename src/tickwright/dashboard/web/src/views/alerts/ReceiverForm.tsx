/** The button and the dialogue that create or edit a receiver. */
import { Alert, Button, Group, Modal, Select, Stack, TextInput } from "@mantine/core";
import { useState } from "react";
import { Problem, put, type Schemas } from "../../api/client";
import { Glyph } from "../../parts/Glyph";
import { useAction } from "../../parts/useAction";

type Severity = NonNullable<Schemas["ReceiverRequest"]["severity_min"]>;
const SEVERITIES: Severity[] = ["info", "warning", "critical"];

interface Props {
  /** The receiver to edit; left out, one is created. */
  receiver?: Schemas["ReceiverView"];
  onSecret: (secret: string) => void;
}

export function ReceiverForm({ receiver, onSecret }: Props) {
  const [open, setOpen] = useState(false);
  return (
    <>
      {receiver === undefined ? (
        <Button leftSection={<Glyph name="plus" size={14} />} onClick={() => setOpen(true)}>
          New receiver
        </Button>
      ) : (
        <Button variant="default" onClick={() => setOpen(true)}>
          Edit
        </Button>
      )}
      <Modal opened={open} onClose={() => setOpen(false)} title={receiver === undefined ? "New receiver" : `Receiver ${receiver.name}`} closeButtonProps={{ "aria-label": "Close" }}>
        <Form receiver={receiver} onSecret={onSecret} onClose={() => setOpen(false)} />
      </Modal>
    </>
  );
}

interface FormProps {
  receiver: Schemas["ReceiverView"] | undefined;
  onSecret: (secret: string) => void;
  onClose: () => void;
}

function Form({ receiver, onSecret, onClose }: FormProps) {
  const [name, setName] = useState(receiver?.name ?? "");
  const [address, setAddress] = useState(receiver?.url ?? "");
  const [severity, setSeverity] = useState<string>(receiver?.severity_min ?? "warning");
  const [rules, setRules] = useState(receiver?.rules?.join(", ") ?? "");
  const wanted = rules.split(/[\s,]+/).filter((rule) => rule !== "");
  const action = useAction({
    run: () =>
      put("/v1/alerts/receivers/{name}", {
        path: { name },
        body: { url: address, severity_min: SEVERITIES.find((one) => one === severity) ?? "info", rules: wanted.length === 0 ? null : wanted },
      }),
    message: (stored) => `Receiver ${stored.receiver.name} is ${stored.created ? "created" : "changed"}.`,
    invalidates: ["receivers"],
  });
  const save = () =>
    action.mutate(undefined, {
      onSuccess: (stored) => {
        onClose();
        if (stored.secret != null) onSecret(stored.secret);
      },
    });
  return (
    <Stack gap="sm">
      {receiver === undefined && <TextInput label="Name" description="An existing receiver of this name is replaced." value={name} onChange={(event) => setName(event.currentTarget.value.trim())} data-autofocus />}
      <TextInput label="Address" placeholder="https://example.org/alerts" value={address} onChange={(event) => setAddress(event.currentTarget.value.trim())} />
      <Select label="Minimum severity" data={SEVERITIES} value={severity} onChange={(value) => setSeverity(value ?? "info")} allowDeselect={false} />
      <TextInput label="Rules" placeholder="every rule" description="Names, separated by commas" value={rules} onChange={(event) => setRules(event.currentTarget.value)} />
      {action.error instanceof Problem && (
        <Alert color="red" variant="light" role="alert" title={`Refused (${action.error.code})`}>
          {action.error.message}
        </Alert>
      )}
      <Group justify="flex-end" gap="xs">
        <Button variant="default" onClick={onClose}>
          Go back
        </Button>
        <Button disabled={name === "" || address === ""} loading={action.isPending} onClick={save}>
          {receiver === undefined ? "Create 1 receiver" : "Save"}
        </Button>
      </Group>
    </Stack>
  );
}
