/** The new time of a job: an instant, a delay from now, or, for many jobs, a shift of each. */
import { Button, Group, Modal, SegmentedControl, Stack, TextInput } from "@mantine/core";
import { useState } from "react";
import { zone } from "../../app/prefs";
import type { MoveTo } from "./bulk";

interface Props {
  open: boolean;
  title: string;
  /** Whether a shift is offered, which only the bulk action supports. */
  shifts?: boolean;
  /** The request is under way. The dialogue stays open until it succeeds, so that a refusal loses no input. */
  busy: boolean;
  onClose: () => void;
  onMove: (to: MoveTo) => void;
}

const DURATION = /^\d+(\.\d+)?(ms|s|m|h|d)([ \d.a-z]*)$/;

export function MoveDialog({ open, title, shifts = false, busy, onClose, onMove }: Props) {
  const [way, setWay] = useState("delay");
  const [typed, setTyped] = useState("");
  const [at, setAt] = useState("");
  const shown = zone.use();
  const to = moveTo(way, way === "at" ? at : typed.trim(), shown === "utc");
  const ways = [
    { value: "delay", label: "From now" },
    { value: "at", label: "At an instant" },
    ...(shifts ? [{ value: "shift", label: "Shift each" }] : []),
  ];
  return (
    <Modal opened={open} onClose={onClose} title={title} closeButtonProps={{ "aria-label": "Close" }}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (to !== null) onMove(to);
        }}
      >
        <Stack>
          <SegmentedControl aria-label="How" value={way} onChange={setWay} data={ways} />
          {way === "at" ? (
            <TextInput
              type="datetime-local"
              step={1}
              label={shown === "utc" ? "Execute at, UTC" : "Execute at, local time"}
              value={at}
              onChange={(event) => setAt(event.currentTarget.value)}
            />
          ) : (
            <TextInput
              label={way === "delay" ? "Delay from now" : "Shift by (- for earlier)"}
              placeholder={way === "delay" ? "15m" : "-1h"}
              description="a number with its unit: d h m s ms"
              value={typed}
              onChange={(event) => setTyped(event.currentTarget.value)}
              data-autofocus
            />
          )}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Go back
            </Button>
            <Button type="submit" disabled={to === null} loading={busy}>
              {shifts ? "Count jobs" : "Reschedule"}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}

function moveTo(way: string, value: string, utc: boolean): MoveTo | null {
  if (way === "at") {
    const instant = new Date(utc ? `${value}Z` : value);
    return value === "" || Number.isNaN(instant.getTime()) ? null : { execute_at: instant.toISOString() };
  }
  if (!DURATION.test(way === "shift" ? value.replace(/^-/, "") : value)) return null;
  return way === "shift" ? { shift: value } : { delay: value };
}
