/** The session. A 401 of any request shows the sign-in form in place; after sign-in the same URL is shown again. */
import { focusManager, useQuery, useQueryClient } from "@tanstack/react-query";
import { createContext, use, useEffect, type ReactNode } from "react";
import { connect, get, Problem, type Schemas } from "../api/client";
import { ErrorBox } from "../parts/ErrorBox";
import { Waiting } from "../parts/Waiting";
import { end, refetchData, SESSION_KEY } from "./queries";
import { SignIn } from "./SignIn";

export type Session = Schemas["SessionView"];
export type Role = "viewer" | "operator" | "admin";
const RANK: Record<string, number> = { viewer: 0, operator: 1, admin: 2 };

const Current = createContext<Session | null>(null);

/** Return the session of the signed-in key. */
export function useSession(): Session {
  const session = use(Current);
  if (session === null) throw new Error("useSession outside of SessionGate");
  return session;
}

/** Whether the signed-in key has at least `role`; actions that it may not do are not shown. */
export function useMay(role: Role): boolean {
  return (RANK[useSession().role] ?? 0) >= (RANK[role] ?? 0);
}

/** Show `children` with a session, and the sign-in form without one. */
export function SessionGate({ children }: { children: ReactNode }) {
  const queries = useQueryClient();
  const found = useQuery({
    queryKey: SESSION_KEY,
    queryFn: async ({ signal }) => {
      const session = await get("/v1/session", { signal });
      connect({ csrf: session.csrf });
      if (queries.getQueryData<Session>(SESSION_KEY)?.key_id !== session.key_id) void refetchData(queries);
      return session;
    },
    staleTime: Infinity,
    refetchOnWindowFocus: false, // done below with a new request: one under way may be of a session that another tab ended
    retry: (count, error) => !(error instanceof Problem && error.status === 401) && count < 2,
  });
  useEffect(() => {
    connect({ onSignedOut: () => queries.getQueryData(SESSION_KEY) !== undefined && void end(queries) });
    // all tabs share the cookie: another tab may have signed in with another key
    return focusManager.subscribe((isFocused) => isFocused && void queries.refetchQueries({ queryKey: SESSION_KEY }));
  }, [queries]);
  if (found.data !== undefined) return <Current value={found.data}>{children}</Current>;
  if (found.error instanceof Problem && found.error.status === 401) return <SignIn />;
  if (found.error) return <ErrorBox error={found.error} onRetry={() => void found.refetch()} alone />;
  return <Waiting />;
}
