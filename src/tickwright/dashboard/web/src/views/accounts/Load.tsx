/** The effect of a change on the load: of the account, of each partner against its limit, and in total. */
import { Alert, Stack } from "@mantine/core";
import type { Schemas } from "../../api/client";
import { count, percent, rate } from "../../parts/Figure";
import { Meter } from "../../parts/Meter";
import classes from "./accounts.module.css";

type Preview = Schemas["LoadPreview"];
type Partner = Schemas["PartnerLoad"];

export function Load({ load, busy }: { load: Preview; busy: boolean }) {
  const over = load.partners.filter((one) => one.over && one.all_then > one.all_now).map((one) => one.partner);
  const still = load.partners.filter((one) => one.over && one.all_then <= one.all_now).map((one) => one.partner);
  return (
    <Stack gap="xs" aria-busy={busy}>
      <div className={classes.scroll}>
        <table className={classes.small} aria-label="Load before and after">
          <thead>
            <tr>
              <th scope="col">Load</th>
              <th scope="col" data-align="right">Now</th>
              <th scope="col" data-align="right">{busy ? "Counting" : "After"}</th>
              <th scope="col">Allowed</th>
            </tr>
          </thead>
          <tbody>
            <Line name={`This account, polls/s (${load.trackers_estimated ? "about " : ""}${count(load.trackers)} trackers)`} now={rate(load.now.polls_per_s)} then={rate(load.then.polls_per_s)} />
            {(load.now.deferred_share > 0 || load.then.deferred_share > 0) && <Line name="Deferred by the cap" now={percent(load.now.deferred_share)} then={percent(load.then.deferred_share)} />}
            {load.partners.map((one) => (
              <PartnerLine key={one.partner} partner={one} />
            ))}
            <Line name="All accounts, polls/s" now={rate(load.all_now.polls_per_s)} then={rate(load.all_then.polls_per_s)} />
            <Line name="Fullest five minutes of the next hour" now={count(load.all_now.slice_peak)} then={count(load.all_then.slice_peak)} />
          </tbody>
        </table>
      </div>
      {over.length > 0 && (
        <Alert variant="light" color="red" title={`More than ${over.join(", ")} allow${over.length === 1 ? "s" : ""}`}>
          Polls would come later and later. Choose a longer interval, set a cap, or agree a higher rate with the partner first.
        </Alert>
      )}
      {still.length > 0 && (
        <Alert variant="light" color="gray" title={`Still more than ${still.join(", ")} allow${still.length === 1 ? "s" : ""}`}>
          This change does not raise it. Polls come later and later until the load is lower.
        </Alert>
      )}
    </Stack>
  );
}

function Line({ name, now, then }: { name: string; now: string; then: string }) {
  return (
    <tr>
      <td>{name}</td>
      <td data-align="right">{now}</td>
      <td data-align="right">{then}</td>
      <td />
    </tr>
  );
}

function PartnerLine({ partner }: { partner: Partner }) {
  const used = partner.used_then;
  return (
    <tr>
      <td>Partner {partner.partner}, polls/s of all accounts</td>
      <td data-align="right">{rate(partner.all_now)}</td>
      <td data-align="right" data-tone={partner.over ? "bad" : undefined}>{rate(partner.all_then)}</td>
      <td style={{ minWidth: 130 }}>
        {partner.rate_per_s === null || used === null ? (
          <span className={classes.none}>no limit</span>
        ) : (
          <>
            {percent(used)} of {rate(partner.rate_per_s)}/s
            <Meter label={`Used share of the limit of ${partner.partner}`} ratio={used} tone={partner.over ? "bad" : used > 0.8 ? "warn" : "good"} />
          </>
        )}
      </td>
    </tr>
  );
}
