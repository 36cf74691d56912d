/**
 * Filters of a view, each bound to a parameter of its URL.
 *
 * `TextFilter` waits until typing stops. The first filter of a view has `first`: `/` goes there.
 */
import { Button, Select, TextInput } from "@mantine/core";
import { useDebouncedCallback } from "@mantine/hooks";
import { useEffect, useState, type ReactNode } from "react";
import { Glyph } from "./Glyph";
import classes from "./parts.module.css";
import { useParameterCheck } from "./ParameterChecks";
import { useUrl } from "./useUrl";

/** A row of filters, with a button that clears them. */
export function Filters({ names, children }: { names: readonly string[]; children: ReactNode }) {
  const url = useUrl();
  const used = names.filter((name) => url.one(name) !== "");
  return (
    <div className={classes.filters} role="search" aria-label="Filters">
      {children}
      {used.length > 0 && (
        <Button variant="subtle" onClick={() => url.set(Object.fromEntries(used.map((name) => [name, null])))}>
          Clear filters
        </Button>
      )}
    </div>
  );
}

interface TextProps {
  name: string;
  label: string;
  placeholder?: string;
  width?: number;
  first?: boolean;
}

const TYPING_MS = 300;

export function TextFilter({ name, label, placeholder, width = 180, first = false }: TextProps) {
  const url = useUrl();
  const current = url.one(name);
  const [typed, setTyped] = useState(current);
  const send = useDebouncedCallback((value: string) => url.set({ [name]: value.trim() }), TYPING_MS);
  useEffect(() => setTyped((before) => (before.trim() === current ? before : current)), [current]);
  return (
    <TextInput
      label={label}
      placeholder={placeholder}
      w={width}
      value={typed}
      maxLength={200}
      leftSection={first ? <Glyph name="search" size={14} /> : undefined}
      data-first-filter={first || undefined}
      onChange={(event) => {
        setTyped(event.currentTarget.value);
        send(event.currentTarget.value);
      }}
    />
  );
}

interface ChoiceProps {
  name: string;
  label: string;
  /** The values, or values with their labels. */
  options: readonly (string | { value: string; label: string })[];
  all?: string;
  width?: number;
  /** The options are the names that are known now; others may exist. */
  names?: boolean;
}

export function ChoiceFilter({ name, label, options, all = "All", width = 170, names = false }: ChoiceProps) {
  const url = useUrl();
  useParameterCheck(
    name,
    label,
    options.map((one) => (typeof one === "string" ? one : one.value)),
    names,
  );
  return (
    <Select
      label={label}
      placeholder={all}
      data={[...options]}
      value={url.one(name) || null}
      onChange={(value) => url.set({ [name]: value })}
      w={width}
      clearable
      searchable={options.length > 8}
      clearButtonProps={{ "aria-label": `Clear ${label}` }}
    />
  );
}
