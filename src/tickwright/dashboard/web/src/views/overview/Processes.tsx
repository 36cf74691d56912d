/** Worker sessions and leases; a figure links to the sessions that it counts. */
import { Link } from "wouter";
import type { Overview } from "../../app/live";
import { Facts } from "../../parts/Facts";
import { count } from "../../parts/Figure";
import { Panel } from "../../parts/Panel";
import { StateBadge } from "../../parts/StateBadge";

export function Workers({ workers }: { workers: Overview["workers"] }) {
  const linked = (number: number, filter: string) => (number === 0 ? "0" : <Link key={filter} href={`/workers?${filter}`}>{count(number)}</Link>);
  const lost = workers.lost_lately > 0 ? <Link key="lost" href="/workers?state=lost"><StateBadge state={`${workers.lost_lately}`} tone="bad" /></Link> : "0";
  const roles = Object.entries(workers.by_role).map(([role, number]) => [role, linked(number, `state=alive&role=${encodeURIComponent(role)}`)] as const);
  return (
    <Panel title="Workers" side={<Link href="/workers">all workers</Link>}>
      <Facts of={[["alive", linked(workers.alive, "state=alive")], ["draining", linked(workers.draining, "state=draining")], ["lost in the last hour", lost], ...roles]} />
    </Panel>
  );
}

export function Leases({ leases }: { leases: Overview["leases"] }) {
  const overdue = leases.overdue.length > 0 ? <StateBadge key="overdue" state={leases.overdue.join(", ")} tone="bad" /> : "none";
  return (
    <Panel title="Leases" side={<Link href="/leases">all leases</Link>}>
      <Facts of={[["held", count(leases.held)], ["free", count(leases.free)], ["overdue", overdue]]} />
    </Panel>
  );
}
