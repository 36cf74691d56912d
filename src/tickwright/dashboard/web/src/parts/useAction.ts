/** A change: shows a message about its result or error, and fetches the affected lists again. */
import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Problem } from "../api/client";

interface Options<A, R> {
  /** Sends the request. */
  run: (argument: A) => Promise<R>;
  /** The message after success, with the number; `null` for none. */
  message: (result: R, argument: A) => string | null;
  /** Names of the lists (first parts of query keys) that are fetched again. */
  invalidates: readonly string[];
  /** The caller shows the error. */
  quiet?: boolean;
}

export function useAction<A, R>({ run, message, invalidates, quiet = false }: Options<A, R>) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: run,
    onSuccess: (result, argument) => {
      const text = message(result, argument);
      if (text !== null) notifications.show({ message: text, autoClose: 5000 });
    },
    onError: (error) => {
      if (quiet) return;
      const code = error instanceof Problem ? ` (${error.code})` : "";
      notifications.show({ title: "Request failed", message: `${error.message}${code}`, color: "red", autoClose: 10000 });
    },
    onSettled: () => Promise.all(invalidates.map((name) => queries.invalidateQueries({ queryKey: [name] }))),
  });
}
