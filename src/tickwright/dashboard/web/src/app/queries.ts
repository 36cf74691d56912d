/** How answers are kept and asked again: while the page is seen only, and a refused question is not repeated. */
import { QueryClient, type Query } from "@tanstack/react-query";
import { connect, Problem, type Schemas } from "../api/client";

export const queries = new QueryClient({
  defaultOptions: {
    queries: {
      networkMode: "always", // the server may be on this very machine, whatever the browser thinks of its network
      staleTime: 2_000,
      refetchIntervalInBackground: false,
      refetchOnWindowFocus: true,
      retry: (count, error) => !(error instanceof Problem && error.status >= 400 && error.status < 500) && count < 2,
      retryDelay: (count) => 1000 * 2 ** count,
    },
    mutations: { retry: false, networkMode: "always" }, // never kept back, to be sent when nobody thinks of it any more
  },
});

export const SESSION_KEY = ["session"] as const;

/** Begin a session: nothing that another key saw is left. */
export function begin(queries: QueryClient, session: Schemas["SessionView"]): void {
  forget(queries);
  connect({ csrf: session.csrf });
  queries.setQueryData(SESSION_KEY, session);
}

/** End the session, and forget what it saw; who is signed in is asked again. */
export async function end(queries: QueryClient): Promise<void> {
  forget(queries);
  connect({ csrf: null });
  await queries.resetQueries({ queryKey: SESSION_KEY });
}

/** Forget what another key saw, and ask for what is shown with the one that is signed in now. */
export function askAgain(queries: QueryClient): Promise<void> {
  return queries.resetQueries({ predicate: isOfData });
}

function forget(queries: QueryClient): void {
  queries.removeQueries({ predicate: isOfData });
}

function isOfData({ queryKey }: Query): boolean {
  return queryKey[0] !== SESSION_KEY[0];
}
