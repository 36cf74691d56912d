import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [
  {
    path: "/jobs",
    title: "Jobs",
    group: "Jobs",
    order: 1,
    key: "j",
    load: () => import("./JobsView"),
    find: (text) => [
      ...(/^\d{1,19}$/.test(text) ? [{ label: `Job ${text}`, to: `/jobs?job=${text}` }] : []),
      { label: `Jobs with the key ${text}`, to: `/jobs?key=${encodeURIComponent(text)}` },
      { label: `Jobs with the text ${text}`, to: `/jobs?text=${encodeURIComponent(text)}` },
    ],
  },
];
