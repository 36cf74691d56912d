import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [
  {
    path: "/campaigns",
    title: "Campaigns",
    group: "Campaigns",
    order: 1,
    key: "c",
    load: () => import("./CampaignsView"),
    find: (text) => [{ label: `Campaigns that begin with ${text}`, to: `/campaigns?q=${encodeURIComponent(text)}` }],
  },
  { path: "/batches", title: "Batches of programs", group: "Campaigns", order: 2, load: () => import("./BatchesView") },
  { path: "/campaigns/edit", title: "Campaign editor", group: "Campaigns", role: "admin", load: () => import("./editor/EditorView") },
];
