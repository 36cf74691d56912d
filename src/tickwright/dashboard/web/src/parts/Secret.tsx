/** A key or a signing secret, which is shown once: it is removed when the dialogue is closed. */
import { Alert, Button, Code, CopyButton, Group, Modal, Stack } from "@mantine/core";

interface Props {
  /** With `null` the dialogue is closed. */
  value: string | null;
  title: string;
  text: string;
  onClose: () => void;
}

export function Secret({ value, title, text, onClose }: Props) {
  return (
    <Modal opened={value !== null} onClose={onClose} title={title} closeOnClickOutside={false} withCloseButton={false}>
      <Stack>
        <Alert variant="light" color="yellow">
          {text}
        </Alert>
        <Code block style={{ overflowWrap: "anywhere", whiteSpace: "pre-wrap" }}>
          {value}
        </Code>
        <Group justify="flex-end">
          <CopyButton value={value ?? ""}>
            {({ copied, copy }) => (
              <Button variant="default" onClick={copy} data-autofocus>
                {copied ? "Copied" : "Copy"}
              </Button>
            )}
          </CopyButton>
          <Button onClick={onClose}>I have copied it</Button>
        </Group>
      </Stack>
    </Modal>
  );
}
