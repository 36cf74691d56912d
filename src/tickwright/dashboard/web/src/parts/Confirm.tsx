/**
 * An action asks for confirmation, and says how many things it changes:
 * `if (await confirm({ title: "Cancel 12 jobs?", text: "…", does: "Cancel 12 jobs", danger: true })) …`
 */
import { Button, Group, Modal, Stack, Text } from "@mantine/core";
import { createContext, use, useCallback, useState, type ReactNode } from "react";

export interface Question {
  title: string;
  text: ReactNode;
  /** The text of the button: the action with its number. */
  does: string;
  danger?: boolean;
}
type Ask = (question: Question) => Promise<boolean>;

const Asking = createContext<Ask>(() => Promise.resolve(false));

/** Return the function that asks; it resolves to whether the user confirmed. */
export function useConfirm(): Ask {
  return use(Asking);
}

interface Open extends Question {
  answer: (yes: boolean) => void;
}

export function ConfirmProvider({ children }: { children: ReactNode }) {
  const [open, setOpen] = useState<Open | null>(null);
  const ask = useCallback<Ask>((question) => new Promise((answer) => setOpen({ ...question, answer })), []);
  const end = (yes: boolean) => {
    open?.answer(yes);
    setOpen(null);
  };
  return (
    <Asking value={ask}>
      {children}
      <Modal opened={open !== null} onClose={() => end(false)} title={open?.title} zIndex={350} closeButtonProps={{ "aria-label": "Close" }}>
        <Stack>
          <Text size="sm" component="div">
            {open?.text}
          </Text>
          <Group justify="flex-end">
            <Button variant="default" onClick={() => end(false)} data-autofocus>
              Go back
            </Button>
            <Button data-confirm color={open?.danger ? "red.9" : "accent"} onClick={() => end(true)}>
              {open?.does}
            </Button>
          </Group>
        </Stack>
      </Modal>
    </Asking>
  );
}
