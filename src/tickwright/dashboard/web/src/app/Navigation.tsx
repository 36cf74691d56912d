/** The views by group; alerts and dead letters with their number. */
import { Link, useLocation } from "wouter";
import { count } from "../parts/Figure";
import classes from "./app.module.css";
import { useOverview, type Overview } from "./live";
import { GROUPS, VIEWS, type View } from "./registry";
import { useMay } from "./session";

const FIGURES: Record<string, (overview: Overview) => number> = {
  "/alerts": (overview) => overview.alerts.critical + overview.alerts.warning,
  "/dead-letters": (overview) => overview.dead_letters.jobs + overview.dead_letters.outbox + (overview.dead_letters.fanout ?? 0),
};

export function Navigation() {
  return (
    <nav className={classes.nav} aria-label="Views">
      {GROUPS.map((group) => {
        const views = VIEWS.filter((view) => view.group === group && view.order !== undefined);
        if (views.length === 0) return null;
        return (
          <div key={group}>
            {group !== "" && <h2>{group}</h2>}
            <ul>
              {views.map((view) => (
                <Entry key={view.path} view={view} />
              ))}
            </ul>
          </div>
        );
      })}
    </nav>
  );
}

function Entry({ view }: { view: View }) {
  const [place] = useLocation();
  const may = useMay(view.role ?? "viewer");
  const figure = useOverview((overview) => FIGURES[view.path]?.(overview) ?? 0) ?? 0;
  const cap = useOverview((overview) => overview.jobs.capped_at) ?? undefined;
  if (!may) return null;
  const isHere = place === view.path || place.startsWith(`${view.path}/`);
  return (
    <li>
      <Link href={view.path} aria-current={isHere ? "page" : undefined}>
        {view.title}
        {figure > 0 && (
          <span className={classes.navCount} data-tone={view.path === "/alerts" ? "bad" : undefined}>
            {count(figure, cap)}
          </span>
        )}
      </Link>
    </li>
  );
}
