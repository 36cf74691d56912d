/** How answers are cached and fetched again: only while the tab is visible; a request that was refused is not repeated. */
import { QueryClient, type Query } from "@tanstack/react-query";
import { connect, Problem, type Schemas } from "../api/client";

export const queries = new QueryClient({
  defaultOptions: {
    queries: {
      networkMode: "always", // the server may be on this machine, even if the browser is offline
      staleTime: 2_000,
      refetchIntervalInBackground: false,
      refetchOnWindowFocus: true,
      retry: (count, error) => !(error instanceof Problem && error.status >= 400 && error.status < 500) && count < 2,
      retryDelay: (count) => 1000 * 2 ** count,
    },
    mutations: { retry: false, networkMode: "always" }, // without a network a change fails at once, it is not sent later
  },
});

export const SESSION_KEY = ["session"] as const;

/** Begin a session: answers to another key are removed. */
export function begin(queries: QueryClient, session: Schemas["SessionView"]): void {
  removeData(queries);
  connect({ csrf: session.csrf });
  queries.setQueryData(SESSION_KEY, session);
}

/** End the session, remove its answers, and fetch the session again. */
export async function end(queries: QueryClient): Promise<void> {
  removeData(queries);
  connect({ csrf: null });
  await queries.resetQueries({ queryKey: SESSION_KEY });
}

/** Remove answers to another key, and fetch what is shown with the key that is signed in now. */
export function refetchData(queries: QueryClient): Promise<void> {
  return queries.resetQueries({ predicate: isOfData });
}

function removeData(queries: QueryClient): void {
  queries.removeQueries({ predicate: isOfData });
}

function isOfData({ queryKey }: Query): boolean {
  return queryKey[0] !== SESSION_KEY[0];
}
