/** Who is signed in. A 401 anywhere shows the sign-in view in place; its end shows the same URL again. */
import { focusManager, useQuery, useQueryClient } from "@tanstack/react-query";
import { createContext, use, useEffect, type ReactNode } from "react";
import { connect, get, Problem, type Schemas } from "../api/client";
import { ErrorBox } from "../parts/ErrorBox";
import { Waiting } from "../parts/Waiting";
import { askAgain, end, SESSION_KEY } from "./queries";
import { SignIn } from "./SignIn";

export type Session = Schemas["SessionView"];
export type Role = "viewer" | "operator" | "admin";
const RANK: Record<string, number> = { viewer: 0, operator: 1, admin: 2 };

const Current = createContext<Session | null>(null);

/** Return who is signed in. */
export function useSession(): Session {
  const session = use(Current);
  if (session === null) throw new Error("useSession outside of SessionGate");
  return session;
}

/** Whether the signed-in key may do what asks for `role`; what it may not do is not shown. */
export function useMay(role: Role): boolean {
  return (RANK[useSession().role] ?? 0) >= (RANK[role] ?? 0);
}

/** Show `children` to who is signed in, and the sign-in view to everybody else. */
export function SessionGate({ children }: { children: ReactNode }) {
  const queries = useQueryClient();
  const found = useQuery({
    queryKey: SESSION_KEY,
    queryFn: async ({ signal }) => {
      const session = await get("/v1/session", { signal });
      connect({ csrf: session.csrf });
      if (queries.getQueryData<Session>(SESSION_KEY)?.key_id !== session.key_id) void askAgain(queries);
      return session;
    },
    staleTime: Infinity,
    refetchOnWindowFocus: false, // below, and anew: an answer on its way may be about whom another tab signed out since
    retry: (count, error) => !(error instanceof Problem && error.status === 401) && count < 2,
  });
  useEffect(() => {
    connect({ onSignedOut: () => queries.getQueryData(SESSION_KEY) !== undefined && void end(queries) });
    // the cookie is every tab's: another one may have signed in somebody else
    return focusManager.subscribe((isFocused) => isFocused && void queries.refetchQueries({ queryKey: SESSION_KEY }));
  }, [queries]);
  if (found.data !== undefined) return <Current value={found.data}>{children}</Current>;
  if (found.error instanceof Problem && found.error.status === 401) return <SignIn />;
  if (found.error) return <ErrorBox error={found.error} onRetry={() => void found.refetch()} alone />;
  return <Waiting />;
}
