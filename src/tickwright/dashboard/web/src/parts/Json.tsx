/** JSON of a user as text: never interpreted, with all digits. */
import { ActionIcon, Button, CopyButton } from "@mantine/core";
import { useState } from "react";
import { pretty } from "../api/json";
import { Glyph } from "./Glyph";
import classes from "./parts.module.css";

const CHARS_MAX = 6_000;

interface Props {
  label: string;
  value: unknown;
  /** The role of the signed-in key may not see the value. */
  hidden?: boolean | undefined;
  /** Show a string as it is, not as JSON. */
  verbatim?: boolean;
}

/** Return the key of an envelope, the JSON in which encrypted values are stored; `null` for any other value. */
export function keyOf(value: unknown): string | null {
  if (typeof value !== "object" || value === null) return null;
  const { $encrypted: envelope } = value as { $encrypted?: unknown };
  if (typeof envelope !== "object" || envelope === null || Object.keys(value).length !== 1) return null;
  const { key, data } = envelope as { key?: unknown; data?: unknown };
  return typeof key === "string" && typeof data === "string" ? key : null;
}

export function Json({ label, value, hidden = false, verbatim = false }: Props) {
  const [whole, setWhole] = useState(false);
  if (hidden) return <p className={classes.none}>Hidden: the role of this key may not see data of users.</p>;
  if (value === null || value === undefined) return <p className={classes.none}>none</p>;
  const key = keyOf(value);
  if (key !== null) return <p className={classes.none}>Encrypted with the key {key}; only programs with that key can read it.</p>;
  const text = verbatim && typeof value === "string" ? value : pretty(value);
  const cut = !whole && text.length > CHARS_MAX;
  return (
    <div className={classes.json}>
      <pre tabIndex={0} aria-label={label}>
        {cut ? text.slice(0, CHARS_MAX) : text}
      </pre>
      <CopyButton value={text}>
        {({ copied, copy }) => (
          <div className={classes.copy}>
            <ActionIcon aria-label={copied ? "Copied" : `Copy ${label}`} onClick={copy}>
              <Glyph name={copied ? "check" : "copy"} />
            </ActionIcon>
          </div>
        )}
      </CopyButton>
      {cut && (
        <Button variant="default" size="compact-xs" onClick={() => setWhole(true)}>
          Show all {text.length.toLocaleString("en-GB")} characters
        </Button>
      )}
    </div>
  );
}
