/** The drawer beside a list: details of what is chosen. Escape closes it; the URL says what is open. */
import { Drawer } from "@mantine/core";
import type { ReactNode } from "react";

interface Props {
  open: boolean;
  title: ReactNode;
  onClose: () => void;
  children: ReactNode;
  wide?: boolean;
}

export function Side({ open, title, onClose, children, wide = false }: Props) {
  return (
    <Drawer
      opened={open}
      onClose={onClose}
      position="right"
      size={wide ? 880 : 620}
      title={title}
      overlayProps={{ backgroundOpacity: 0.15 }}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      {children}
    </Drawer>
  );
}
