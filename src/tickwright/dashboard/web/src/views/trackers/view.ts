import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [
  {
    path: "/trackers",
    title: "Trackers",
    group: "Polling",
    order: 2,
    key: "r",
    load: () => import("./TrackersView"),
    find: (text) => [
      ...(/^\d{1,19}$/.test(text) ? [{ label: `Tracker ${text}`, to: `/trackers?tracker=${text}` }] : []),
      { label: `Trackers whose external id begins with ${text}`, to: `/trackers?external=${encodeURIComponent(text)}` },
    ],
  },
];
