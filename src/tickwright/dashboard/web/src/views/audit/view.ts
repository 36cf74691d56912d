import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [
  {
    path: "/audit",
    title: "Audit",
    group: "Operation",
    order: 7,
    key: "u",
    load: () => import("./AuditView"),
    find: (text) => [{ label: `Actions on ${text}`, to: `/audit?subject=${encodeURIComponent(text)}` }],
  },
];
