/**
 * Checks of URL parameters: a value that a view does not know is shown above the view, with the possible values.
 *
 * A component that reads a parameter with a closed set of values calls `useParameterCheck`. `View` shows unknown values,
 * and offers no action on "all that match" until they are removed. An unknown name (`names`) blocks no action: jobs may
 * have a task type that is not registered.
 */
import { Alert, Button, Code, Group, Text } from "@mantine/core";
import { createContext, use, useCallback, useEffect, useState, type ReactNode } from "react";
import { useUrl } from "./useUrl";

interface UnknownValue {
  label: string;
  value: string;
  possible: string;
  /** The list is filtered by an unknown name too, and its actions stay. */
  isName: boolean;
}
type Report = (name: string, found: UnknownValue | null) => void;

const Reporting = createContext<Report>(() => undefined);
/** So many possible values are listed. */
const LISTED_MAX = 20;
/** With so many possible values the list may be incomplete, so no value is unknown. */
const COMPLETE_MAX = 200;

export const INSTANT = "an instant as ISO 8601 with its zone, such as 2026-01-31T08:00:00Z";
export const NUMBER = "a number of at most 19 digits";

/** Check the parameter `name` against its possible values, or against a format; without values nothing is checked. */
export function useParameterCheck(name: string, label: string, possible: readonly string[] | typeof INSTANT | typeof NUMBER, isName = false): void {
  const report = use(Reporting);
  const value = useUrl().one(name);
  const known = value === "" || isKnown(value, possible);
  const expected = typeof possible === "string" ? possible : listed(possible);
  useEffect(() => {
    report(name, known ? null : { label, value, possible: expected, isName });
    return () => report(name, null);
  }, [report, name, label, value, known, expected, isName]);
}

/** The same check as a component, for a parameter that is read outside of `View`. */
export function CheckedParameter({ name, label, possible }: { name: string; label: string; possible: readonly string[] }): null {
  useParameterCheck(name, label, possible);
  return null;
}

function isKnown(value: string, possible: readonly string[] | string): boolean {
  if (possible === NUMBER) return /^\d{1,19}$/.test(value);
  if (possible === INSTANT) return isInstant(value);
  return possible.length === 0 || possible.length >= COMPLETE_MAX || possible.includes(value);
}

/** Whether the API accepts it: a year of four digits, a day that the month has, and a time zone. */
function isInstant(value: string): boolean {
  return /^\d{4}-\d\d-\d\d[T ][\d:.]+(Z|[+-]\d\d:?\d\d)$/i.test(value) && !Number.isNaN(Date.parse(value));
}

function listed(values: readonly string[]): string {
  const more = values.length - LISTED_MAX;
  return values.slice(0, LISTED_MAX).join(", ") + (more > 0 ? ` and ${more} more` : "");
}

/** Show unknown values between `head` and `children`; the argument of `head` says whether actions may be offered. */
export function ParameterChecks({ head, children }: { head: (mayAct: boolean) => ReactNode; children: ReactNode }) {
  const [unknowns, setUnknowns] = useState<Readonly<Record<string, UnknownValue>>>({});
  const report = useCallback<Report>((name, found) => {
    setUnknowns((before) => {
      if (found === null && !Object.hasOwn(before, name)) return before;
      const { [name]: _, ...others } = before;
      return found === null ? others : { ...others, [name]: found };
    });
  }, []);
  const all = Object.entries(unknowns);
  return (
    <Reporting value={report}>
      {head(all.every(([, one]) => one.isName))}
      {all.map(([name, one]) => (
        <UnknownValueAlert key={name} name={name} of={one} />
      ))}
      {children}
    </Reporting>
  );
}

/** Yellow on yellow has too little contrast. */
const READABLE = { title: { color: "var(--mantine-color-text)" } };

function UnknownValueAlert({ name, of: { label, value, possible, isName } }: { name: string; of: UnknownValue }) {
  const url = useUrl();
  return (
    <Alert color="yellow" variant="light" role="alert" styles={READABLE} title={isName ? `Unknown name in the filter ${label}` : `Unknown value in the filter ${label}`}>
      <Text size="sm">
        <Code>{value}</Code> is not known{isName && "; the list is filtered by it anyway"}. {isName ? "Known" : "Possible"}: {possible}.
      </Text>
      <Group mt="xs">
        <Button size="compact-xs" variant="default" onClick={() => url.set({ [name]: null })}>
          Remove the filter {label}
        </Button>
      </Group>
    </Alert>
  );
}
