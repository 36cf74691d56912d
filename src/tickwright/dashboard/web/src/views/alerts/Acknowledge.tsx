/** The button and the dialogue that acknowledge an alert. */
import { Button, Group, Modal, Stack, Textarea } from "@mantine/core";
import { useState } from "react";
import { post, type Schemas } from "../../api/client";
import { ErrorBox } from "../../parts/ErrorBox";
import { useAction } from "../../parts/useAction";

export function Acknowledge({ alert }: { alert: Schemas["AlertView"] }) {
  const [open, setOpen] = useState(false);
  const [note, setNote] = useState(alert.acknowledged_note ?? "");
  const action = useAction({
    run: () => post("/v1/alerts/{alert}/acknowledge", { path: { alert: alert.id }, body: { note: note.trim() || null } }),
    message: (done) => `${done.rule} is acknowledged by ${done.acknowledged_by ?? "you"}.`,
    invalidates: ["alerts"],
    quiet: true,
  });
  return (
    <>
      <Button variant="default" onClick={() => setOpen(true)}>
        {alert.acknowledged_by === null ? "Acknowledge" : "Change the note"}
      </Button>
      <Modal opened={open} onClose={() => setOpen(false)} title={`Acknowledge ${alert.rule}?`} closeButtonProps={{ "aria-label": "Close" }}>
        <Stack gap="sm">
          <Textarea label="Note" description="All users see it. The alert fires until its cause is gone; if it fires again, that is a new alert." value={note} autosize minRows={3} onChange={(event) => setNote(event.currentTarget.value)} data-autofocus />
          {action.error !== null && <ErrorBox error={action.error} />}
          <Group justify="flex-end" gap="xs">
            <Button variant="default" onClick={() => setOpen(false)}>
              Go back
            </Button>
            <Button loading={action.isPending} onClick={() => action.mutate(undefined, { onSuccess: () => setOpen(false) })}>
              Acknowledge 1 alert
            </Button>
          </Group>
        </Stack>
      </Modal>
    </>
  );
}
