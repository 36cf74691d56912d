/** The drawer beside a list, with details of one row. Escape closes it; the URL names the row. */
import { Drawer } from "@mantine/core";
import { useWindowEvent } from "@mantine/hooks";
import type { ReactNode } from "react";

interface Props {
  open: boolean;
  title: ReactNode;
  onClose: () => void;
  children: ReactNode;
  wide?: boolean;
}

export function Side({ open, title, onClose, children, wide = false }: Props) {
  useWindowEvent("keydown", (event) => {
    if (open && event.key === "Escape" && !event.defaultPrevented && isOnTop()) onClose();
  });
  return (
    <Drawer
      opened={open}
      onClose={onClose}
      position="right"
      closeOnEscape={false}
      size={wide ? 880 : 620}
      title={title}
      overlayProps={{ backgroundOpacity: 0.15 }}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      {children}
    </Drawer>
  );
}

/** Escape closes one dialogue: a confirmation or a form above the drawer first. */
function isOnTop(): boolean {
  return document.querySelectorAll('[role="dialog"]').length === 1;
}
