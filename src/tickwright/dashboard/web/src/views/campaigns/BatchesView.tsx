/** The batches that programs bring: what they say of themselves, and when they run. */
import { View } from "../../parts/View";
import { BatchList } from "./BatchList";

export default function BatchesView() {
  return (
    <View title="Batches of programs">
      <BatchList kind="batches" />
    </View>
  );
}
