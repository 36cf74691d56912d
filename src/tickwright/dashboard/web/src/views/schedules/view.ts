import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [
  {
    path: "/schedules",
    title: "Schedules",
    group: "Jobs",
    order: 4,
    key: "h",
    load: () => import("./SchedulesView"),
    find: (text) => [{ label: `Schedules that begin with ${text}`, to: `/schedules?q=${encodeURIComponent(text)}` }],
  },
];
