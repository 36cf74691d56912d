/** The list of keyboard shortcuts. */
import { Kbd, Modal } from "@mantine/core";
import classes from "./app.module.css";
import { VIEWS } from "./registry";

const KEYS: readonly (readonly [string, string])[] = [
  ["/", "Go to the first filter"],
  ["?", "Show this list"],
  ["Esc", "Close the open drawer or dialogue"],
  ["↑ ↓", "Move in a table"],
  ["Enter", "Open the row"],
  ["Space", "Choose the row"],
];

export function KeysHelp({ open, onClose }: { open: boolean; onClose: () => void }) {
  const chords = VIEWS.flatMap((view) => (view.key === undefined ? [] : [[`g ${view.key}`, view.title] as const]));
  return (
    <Modal opened={open} onClose={onClose} title="Keyboard shortcuts" closeButtonProps={{ "aria-label": "Close" }}>
      <div className={classes.keys}>
        {[...KEYS, ...chords].map(([key, does]) => (
          <KeyLine key={key} name={key} does={does} />
        ))}
      </div>
    </Modal>
  );
}

function KeyLine({ name, does }: { name: string; does: string }) {
  return (
    <>
      <span>
        {name.split(" ").map((one) => (
          <Kbd key={one} size="xs" mr={4}>
            {one}
          </Kbd>
        ))}
      </span>
      <span>{does}</span>
    </>
  );
}
