/** A field for a JSON object, or for any JSON: the problem is shown below it, and the text stays as it was typed. */
import { Textarea } from "@mantine/core";
import { readJson, readObject } from "../api/json";

interface Props {
  label: string;
  description: string;
  value: string;
  onChange: (text: string) => void;
  minRows?: number;
  /** Any value may be entered, not only an object. */
  any?: boolean;
}

export function JsonField({ label, description, value, onChange, minRows = 8, any = false }: Props) {
  const { problem } = (any ? readJson : readObject)(value);
  return (
    <Textarea
      label={label}
      description={description}
      value={value}
      error={problem === null ? undefined : `${problem} (invalid_json)`}
      onChange={(event) => onChange(event.currentTarget.value)}
      autosize
      minRows={minRows}
      maxRows={24}
      spellCheck={false}
      styles={{ input: { fontFamily: "var(--mantine-font-family-monospace)", fontSize: 13 } }}
    />
  );
}
