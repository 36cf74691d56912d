import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [
  {
    path: "/executions",
    title: "Executions",
    group: "Campaigns",
    order: 3,
    key: "x",
    load: () => import("./ExecutionsView"),
    find: (text) => (/^\d{1,19}$/.test(text) ? [{ label: `Execution ${text}`, to: `/executions?execution=${text}` }] : []),
  },
];
