/** The newest jobs. */
import { Link } from "wouter";
import type { Overview } from "../../app/live";
import { Instant } from "../../parts/Instant";
import { Panel } from "../../parts/Panel";
import { StateBadge } from "../../parts/StateBadge";
import classes from "./overview.module.css";

export function LatestJobs({ jobs }: { jobs: Overview["jobs"]["latest"] }) {
  return (
    <Panel title="Newest jobs" side={<Link href="/jobs">all jobs</Link>}>
      {jobs.length === 0 && <p className={classes.calm}>There is no job yet. Schedule one with Python, SQL, REST or the command line.</p>}
      <table className={classes.table} aria-label="Newest jobs">
        <tbody>
          {jobs.map((job) => (
            <tr key={job.id}>
              <th scope="row">
                <Link href={`/jobs?job=${job.id}`}>{job.id}</Link>
              </th>
              <td>{job.task_type}</td>
              <td>
                <StateBadge state={job.status} />
              </td>
              <td className={classes.quiet} title={job.error ?? undefined}>
                {job.error ?? <Instant at={job.due_at} ago />}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}
