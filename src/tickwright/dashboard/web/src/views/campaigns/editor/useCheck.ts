/** Checks a definition with the API shortly after typing stops; an answer about an older text is ignored. */
import { useDebouncedValue } from "@mantine/hooks";
import { useQuery } from "@tanstack/react-query";
import { post } from "../../../api/client";
import { stringify } from "../../../api/json";
import type { Definition } from "./form";
import type { Mistake } from "./marks";

const TYPING_MS = 300;

export interface Checked {
  /** The mistakes in the current definition; `undefined` until it is checked. */
  mistakes: readonly Mistake[] | undefined;
  error: Error | null;
}

export function useCheck(definition: Definition): Checked {
  const now = stringify(definition);
  const [settled] = useDebouncedValue(now, TYPING_MS);
  const found = useQuery({
    queryKey: ["campaign-check", settled],
    queryFn: ({ signal }) => post("/v1/campaigns:check", { body: definition, signal }),
    staleTime: 10_000,
    gcTime: 10_000,
    enabled: settled === now,
  });
  const isOfNow = settled === now;
  return { mistakes: isOfNow ? found.data?.problems : undefined, error: isOfNow ? found.error : null };
}
