/** The state of a view is in its URL, so that it can be shared; empty values are removed from it. */
import { useCallback } from "react";
import { useSearchParams } from "wouter";

type Values = Readonly<Record<string, string | readonly string[] | null | undefined>>;

export interface Url {
  /** The value of a parameter; empty when it is not there. */
  one: (name: string) => string;
  /** All values of a parameter that may occur several times. */
  all: (name: string) => string[];
  /** Change parameters. A filter replaces the history entry; opening something adds one (`push`). */
  set: (values: Values, push?: boolean) => void;
}

export function useUrl(): Url {
  const [params, setParams] = useSearchParams();
  const set = useCallback(
    (values: Values, push = false) =>
      setParams(
        (before) => {
          const next = new URLSearchParams(before);
          for (const [name, value] of Object.entries(values)) {
            next.delete(name);
            for (const one of Array.isArray(value) ? (value as string[]) : [value as string | null | undefined]) {
              if (one != null && one !== "") next.append(name, one);
            }
          }
          return next;
        },
        { replace: !push },
      ),
    [setParams],
  );
  return { one: (name) => params.get(name) ?? "", all: (name) => params.getAll(name), set };
}
