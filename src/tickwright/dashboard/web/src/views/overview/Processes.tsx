/** Worker sessions and leases. */
import { Link } from "wouter";
import type { Overview } from "../../app/live";
import { Facts } from "../../parts/Facts";
import { count } from "../../parts/Figure";
import { Panel } from "../../parts/Panel";
import { StateBadge } from "../../parts/StateBadge";

export function Workers({ workers }: { workers: Overview["workers"] }) {
  const lost = workers.lost_lately > 0 ? <StateBadge key="lost" state={`${workers.lost_lately}`} tone="bad" /> : "0";
  const roles = Object.entries(workers.by_role).map(([role, number]) => [role, count(number)] as const);
  return (
    <Panel title="Workers" side={<Link href="/workers">all workers</Link>}>
      <Facts of={[["alive", count(workers.alive)], ["draining", count(workers.draining)], ["lost in the last hour", lost], ...roles]} />
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
