/** The button and the dialogue that say who looks after an alert. */
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
    told: (said) => `${said.rule} is looked after by ${said.acknowledged_by ?? "you"}.`,
    touches: ["alerts"],
    quiet: true,
  });
  return (
    <>
      <Button variant="default" onClick={() => setOpen(true)}>
        {alert.acknowledged_by === null ? "I look after it" : "Change the note"}
      </Button>
      <Modal opened={open} onClose={() => setOpen(false)} title={`Look after ${alert.rule}?`} closeButtonProps={{ "aria-label": "Close" }}>
        <Stack gap="sm">
          <Textarea label="Note" description="Everybody reads it here. The alert goes on firing until its cause is gone; one that fires again is a new one." value={note} autosize minRows={3} onChange={(event) => setNote(event.currentTarget.value)} data-autofocus />
          {action.error !== null && <ErrorBox error={action.error} />}
          <Group justify="flex-end" gap="xs">
            <Button variant="default" onClick={() => setOpen(false)}>
              Leave it
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
