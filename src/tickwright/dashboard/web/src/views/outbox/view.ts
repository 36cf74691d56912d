import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [
  {
    path: "/outbox",
    title: "Outbox",
    group: "Operation",
    order: 3,
    key: "b",
    load: () => import("./OutboxView"),
    find: (text) => (/^(https?|wss?|amqp|kafka|pg):/.test(text) ? [{ label: `Messages that wait for ${text}`, to: `/outbox?part=messages&destination=${encodeURIComponent(text)}` }] : []),
  },
];
