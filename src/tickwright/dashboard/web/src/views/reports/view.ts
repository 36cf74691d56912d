import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [
  {
    path: "/reports",
    title: "Reports",
    group: "Reports",
    order: 1,
    key: "f",
    load: () => import("./ReportsView"),
    find: (text) => [
      ...(/^\d{1,19}$/.test(text) ? [{ label: `Report ${text}`, to: `/reports?report=${text}` }] : []),
      { label: `Reports of ${text}`, to: `/reports?requester=${encodeURIComponent(text)}` },
    ],
  },
  { path: "/report-types", title: "Report types", group: "Reports", order: 2, load: () => import("./TypesView") },
];
