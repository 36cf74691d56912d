/** Campaigns and their next runs; admins create and change them. */
import { Button } from "@mantine/core";
import { Link } from "wouter";
import { useMay } from "../../app/session";
import { Glyph } from "../../parts/Glyph";
import { View } from "../../parts/View";
import { BatchList } from "./BatchList";

export default function CampaignsView() {
  const isAdmin = useMay("admin");
  return (
    <View
      title="Campaigns"
      actions={
        isAdmin && (
          <Button component={Link} href="/campaigns/edit" leftSection={<Glyph name="plus" size={12} />}>
            Create
          </Button>
        )
      }
    >
      <BatchList kind="campaigns" />
    </View>
  );
}
