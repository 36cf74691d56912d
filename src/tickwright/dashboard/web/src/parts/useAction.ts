/** Something that changes the world: its result is told, its error too, and the lists that it touches are asked again. */
import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Problem } from "../api/client";

interface Options<A, R> {
  /** Sends it. */
  run: (argument: A) => Promise<R>;
  /** What is said when it is done, with the number; `null` says nothing. */
  told: (result: R, argument: A) => string | null;
  /** First parts of the query keys that are asked again. */
  touches: readonly string[];
  /** The error is shown where the action is, by whoever started it. */
  quiet?: boolean;
}

export function useAction<A, R>({ run, told, touches, quiet = false }: Options<A, R>) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: run,
    onSuccess: (result, argument) => {
      const message = told(result, argument);
      if (message !== null) notifications.show({ message, autoClose: 5000 });
    },
    onError: (error) => {
      if (quiet) return;
      const code = error instanceof Problem ? ` (${error.code})` : "";
      notifications.show({ title: "That did not work", message: `${error.message}${code}`, color: "red", autoClose: 10000 });
    },
    onSettled: () => Promise.all(touches.map((name) => queries.invalidateQueries({ queryKey: [name] }))),
  });
}
