/**
 * What a shared address asks for and its view does not know: said above the view, with what is possible, not left out.
 *
 * Whatever reads a parameter with a closed set of values calls `useUnderstood`; `View` shows what they do not understand
 * and offers no action on "all that match" until it is gone. A name (`names`) is another matter: jobs of a type that nobody has are found.
 */
import { Alert, Button, Code, Group, Text } from "@mantine/core";
import { createContext, use, useCallback, useEffect, useState, type ReactNode } from "react";
import { useUrl } from "./useUrl";

interface Strange {
  label: string;
  value: string;
  possible: string;
  /** A name that nobody has heard of is asked for all the same, and what it names can be acted on. */
  isName: boolean;
}
type Tell = (name: string, strange: Strange | null) => void;

const Telling = createContext<Tell>(() => undefined);
/** So many values are named; a list of more may not be whole, so nothing is said to be missing from it. */
const NAMED_MAX = 20;
const JUDGED_MAX = 200;

export const INSTANT = "an instant as ISO 8601 with its zone, such as 2026-01-31T08:00:00Z";
export const NUMBER = "a number of at most 19 digits";

/** Check the parameter `name` against its values, or against a form; nothing is checked while the values are not there. */
export function useUnderstood(name: string, label: string, possible: readonly string[] | typeof INSTANT | typeof NUMBER, isName = false): void {
  const tell = use(Telling);
  const value = useUrl().one(name);
  const known = value === "" || isKnown(value, possible);
  const said = typeof possible === "string" ? possible : spoken(possible);
  useEffect(() => {
    tell(name, known ? null : { label, value, possible: said, isName });
    return () => tell(name, null);
  }, [tell, name, label, value, known, said, isName]);
}

/** The same for a parameter that the view itself reads, which is outside of its frame. */
export function Checked({ name, label, possible }: { name: string; label: string; possible: readonly string[] }): null {
  useUnderstood(name, label, possible);
  return null;
}

function isKnown(value: string, possible: readonly string[] | string): boolean {
  if (possible === NUMBER) return /^\d{1,19}$/.test(value);
  if (possible === INSTANT) return isInstant(value);
  return possible.length === 0 || possible.length >= JUDGED_MAX || possible.includes(value);
}

/** Whether the API takes it: four digits of a year, a day that the month has, and a zone. */
function isInstant(value: string): boolean {
  return /^\d{4}-\d\d-\d\d[T ][\d:.]+(Z|[+-]\d\d:?\d\d)$/i.test(value) && !Number.isNaN(Date.parse(value));
}

function spoken(values: readonly string[]): string {
  const more = values.length - NAMED_MAX;
  return values.slice(0, NAMED_MAX).join(", ") + (more > 0 ? ` and ${more} more` : "");
}

/** Draw `children` with what is not understood below the head that `head` draws; it hears whether all is. */
export function Understood({ head, children }: { head: (all: boolean) => ReactNode; children: ReactNode }) {
  const [strange, setStrange] = useState<Readonly<Record<string, Strange>>>({});
  const tell = useCallback<Tell>((name, found) => {
    setStrange((before) => {
      if (found === null && !Object.hasOwn(before, name)) return before;
      const { [name]: _, ...others } = before;
      return found === null ? others : { ...others, [name]: found };
    });
  }, []);
  const all = Object.entries(strange);
  return (
    <Telling value={tell}>
      {head(all.every(([, one]) => one.isName))}
      {all.map(([name, one]) => (
        <NotUnderstood key={name} name={name} of={one} />
      ))}
      {children}
    </Telling>
  );
}

/** Yellow on yellow is too faint to read. */
const READABLE = { title: { color: "var(--mantine-color-text)" } };

function NotUnderstood({ name, of: { label, value, possible, isName } }: { name: string; of: Strange }) {
  const url = useUrl();
  return (
    <Alert color="yellow" variant="light" role="alert" styles={READABLE} title={isName ? `${label} is a name that is not known` : `The address has a filter that is not understood: ${label}`}>
      <Text size="sm">
        <Code>{value}</Code> is not known here{isName && ", and is asked for all the same"}. {isName ? "Known" : "Possible"}: {possible}.
      </Text>
      <Group mt="xs">
        <Button size="compact-xs" variant="default" onClick={() => url.set({ [name]: null })}>
          Remove the filter {label}
        </Button>
      </Group>
    </Alert>
  );
}
