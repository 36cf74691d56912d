/** The dashboard: the session, the shell, and the view that the URL names. */
import { Suspense } from "react";
import { Redirect, Route, Router, Switch } from "wouter";
import { EmptyState } from "../parts/EmptyState";
import { Waiting } from "../parts/Waiting";
import { Boundary } from "./Boundary";
import { LiveOverview } from "./live";
import { VIEWS, type View } from "./registry";
import { SessionGate, useMay } from "./session";
import { Shell } from "./Shell";

const base = new URL(document.baseURI).pathname.replace(/\/$/, "");

export function App() {
  return (
    <Router base={base}>
      <Boundary>
        <SessionGate>
          <LiveOverview />
          <Shell>
            <Switch>
              {VIEWS.map((view) => (
                <Route key={view.path} path={view.path}>
                  <Place view={view} />
                </Route>
              ))}
              <Route path="/">
                <Redirect to={VIEWS[0]?.path ?? "/jobs"} replace />
              </Route>
              <Route>
                <EmptyState title="There is nothing at this address">Choose a view on the left, or press ? for the keyboard shortcuts.</EmptyState>
              </Route>
            </Switch>
          </Shell>
        </SessionGate>
      </Boundary>
    </Router>
  );
}

function Place({ view }: { view: View }) {
  const allowed = useMay(view.role ?? "viewer");
  if (!allowed) {
    return <EmptyState title={`${view.title}: the role ${view.role} is required`}>Sign in with a key that has this role.</EmptyState>;
  }
  return (
    <Boundary key={view.path}>
      <Suspense fallback={<Waiting />}>
        <view.component />
      </Suspense>
    </Boundary>
  );
}
